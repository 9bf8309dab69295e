"""Rules that the programs themselves enforce at start, beyond the rules of TrainingArguments."""

from planner.formats.rules import ConfigView, Rules
from planner.formats.trainer import keys

# By the program's table.
RULES = {name: Rules(ConfigView) for name in ("llamafactory", "axolotl", "ms-swift", "trl")}
llamafactory, axolotl, swift, trl = RULES.values()
_PARSER = "LLaMA-Factory src/llamafactory/hparams/parser.py"
_VALIDATION = "axolotl src/axolotl/utils/schemas/validation.py"
_PEFT = "axolotl src/axolotl/utils/schemas/peft.py"
_SFT = "ms-swift swift/arguments/sft_args.py"


llamafactory(
    f"{_PARSER} _verify_model_args",
    name="quantised_weights_have_adapters",
    holds="Weights in 4 or 8 bits are not trained themselves.",
    key="quantization_bit",
    when=lambda file: (
        file["quantization_bit"] is not None
        and file.word("finetuning_type", "lora") not in ("lora", "oft")
    ),
    says="given {given} with finetuning_type {file[finetuning_type]}; lora or oft",
)


@llamafactory(
    "LLaMA-Factory src/llamafactory/hparams/finetuning_args.py",
    says="given true with finetuning_type lora; finetuning_type full",
)
def galore_and_its_kin_train_all_weights(file: ConfigView) -> list[str]:
    """GaLore, APOLLO and BAdam are not for LoRA."""
    is_lora = file.word("finetuning_type", "lora") == "lora"
    names = ("use_galore", "use_apollo", "use_badam")
    return [key for key in names if file.flag(key) and is_lora]


llamafactory(
    f"{_PARSER} get_train_args",
    name="pure_bf16_without_zero3",
    holds="ZeRO 3 keeps weights of its own.",
    key="pure_bf16",
    when=lambda file: file.flag("pure_bf16") and file[keys.STAGE] == 3,
    says="given true with a DeepSpeed file of stage 3; bf16 true",
)
axolotl(
    f"{_PEFT} validate_qlora",
    name="qlora_loads_4_bits",
    holds="QLoRA is adapters beside weights in 4 bits.",
    key="load_in_4bit",
    when=lambda file: file.word("adapter") == "qlora" and not file.flag("load_in_4bit"),
    says="given {given} with adapter qlora; true",
)
axolotl(
    f"{_PEFT} validate_adapter",
    name="quantised_weights_have_an_adapter",
    holds="Weights in 4 or 8 bits are not trained themselves.",
    when=lambda file: [
        key for key in ("load_in_4bit", "load_in_8bit") if file.flag(key) and not file["adapter"]
    ],
    says="given true without an adapter; adapter qlora or lora, or false",
)
axolotl(
    f"{_VALIDATION} check_warmup",
    name="one_warm_up",
    holds="Warm-up is so many steps, or a share of them.",
    key="warmup_ratio",
    when=lambda file: bool(file["warmup_steps"] and file["warmup_ratio"]),
    says="given beside warmup_steps; one of them",
)
axolotl(
    f"{_VALIDATION} check_saves",
    name="one_way_to_save",
    holds="Checkpoints are written so many times per epoch, or every so many steps.",
    key="saves_per_epoch",
    when=lambda file: bool(file["saves_per_epoch"] and file["save_steps"]),
    says="given beside save_steps; one of them",
)
axolotl(
    f"{_VALIDATION} check_evals",
    name="one_way_to_evaluate",
    holds="Evaluation is so many times per epoch, or every so many steps.",
    key="evals_per_epoch",
    when=lambda file: bool(file["evals_per_epoch"] and file["eval_steps"]),
    says="given beside eval_steps; one of them",
)


swift(
    f"{_SFT} _init_fsdp",
    name="one_engine_shards",
    holds="FSDP and DeepSpeed both shard.",
    key=keys.FSDP,
    when=lambda file: file.is_on(keys.FSDP) and file.is_on(keys.DEEPSPEED),
    says="given beside deepspeed; one of them",
)


swift(
    f"{_SFT} _init_deepspeed",
    name="tensor_parallelism_has_deepspeed",
    holds="DeepSpeed splits the weights.",
    key="deepspeed_autotp_size",
    when=lambda file: file.whole("deepspeed_autotp_size") > 1 and not file.is_on(keys.DEEPSPEED),
    says="given {given} without deepspeed; deepspeed as well",
)


@trl(
    "TRL trl/trainer/sft_trainer.py",
    key="loss_type",
    says="given chunked_nll beside use_liger_kernel true; nll, or none of it",
)
def one_loss(file: ConfigView) -> bool:
    """The loss is chunked by TRL or by Liger."""
    is_stated = "loss_type" in file.settings and file.settings["loss_type"].line > 0
    is_chunked = is_stated and file.word("loss_type") == "chunked_nll"
    return is_chunked and any(file.flag(name) for name in ("use_liger_kernel", "use_liger"))
