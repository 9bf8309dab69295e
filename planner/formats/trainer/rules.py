"""Rules of TrainingArguments and Trainer, and of the programs that hand their files to it."""

from planner.formats.accelerate.keys import of_another_model
from planner.formats.accelerate.rules import POLICIES
from planner.formats.deepspeed.keys import HANG, LEAVES
from planner.formats.rules import ConfigView, Refused, Rules, Violations, first_of
from planner.formats.settings import as_number, one_of
from planner.formats.trainer import keys
from planner.spec.cluster import PROCESSOR
from planner.spelling import did_you_mean

ARGUMENTS = "transformers/training_args.py"
WRAPPED = "fsdp_config.transformer_layer_cls_to_wrap"
TRAINER = "transformers/trainer.py"
_FUSED = "adamw_torch_fused"


rule = Rules(ConfigView)


rule(
    ARGUMENTS,
    name="one_precision",
    holds="Products are in one precision.",
    key="fp16",
    when=lambda file: file.flag("fp16") and file.flag("bf16"),
    says="given true beside bf16 true; one of them",
)


rule(
    ARGUMENTS,
    name="one_evaluation_precision",
    holds="Evaluation is in one precision.",
    key="fp16_full_eval",
    when=lambda file: file.flag("fp16_full_eval") and file.flag("bf16_full_eval"),
    says="given true beside bf16_full_eval true; one of them",
)


@rule(ARGUMENTS, key=keys.OPTIM)
def optim_known(file: ConfigView) -> Refused:
    """The optimizer is one transformers has."""
    given, known = file.word(keys.OPTIM, "adamw_torch_fused"), keys.optimizers()
    hint = did_you_mean(given, known) or one_of(known)
    return {f"given {given!r}; {hint}": given not in known}


@rule(ARGUMENTS, key=keys.FSDP)
def fsdp_options_known(file: ConfigView) -> Refused:
    """The old form of fsdp holds words transformers knows."""
    known = (*keys.FSDP2_OPTIONS, *keys.FSDP1_OPTIONS)
    return {
        f"given {each!r}; true, with the rest in fsdp_config": each not in known
        for each in keys.options(file.settings)
    }


@rule(ARGUMENTS, key=keys.FSDP)
def fsdp2_shards_fully(file: ConfigView) -> Refused:
    """Hybrid strategies by name are FSDP1's."""
    if file.whole(keys.VERSION, 2) != 2:
        return {}
    instead = "true, and a mesh for replicas of the sharding group"
    return first_of(
        {
            f"given {each}; {instead}": each in keys.FSDP1_OPTIONS
            for each in keys.options(file.settings)
        }
    )


rule(
    ARGUMENTS,
    name="wrap_policy_known",
    holds="The policy is one Accelerate has.",
    key=keys.WRAP,
    when=lambda file: file.is_on(keys.FSDP) and file.word(keys.WRAP, POLICIES[0]) not in POLICIES,
    says=f"given {{given!r}}; {one_of(POLICIES)}",
)


rule.unenforced(
    f"{ARGUMENTS} _process_fsdp_args",
    name="fsdp_config_is_used",
    holds="fsdp_config does nothing by itself.",
    key=keys.FSDP_CONFIG,
    severity="warning",
    when=lambda file: file.is_on(keys.FSDP_CONFIG) and not file.is_on(keys.FSDP),
    says="given without fsdp; fsdp true as well",
)


rule.unenforced(
    "accelerate/state.py",
    name="fsdp_or_deepspeed",
    holds="One of them shards; with both, DeepSpeed does and FSDP is left out.",
    key="fsdp",
    when=lambda file: file.is_on(keys.FSDP) and file.is_on(keys.DEEPSPEED),
    says="given beside deepspeed; one of them",
)


rule.unenforced(
    ARGUMENTS,
    name="fsdp2_is_used",
    holds="FSDP1 goes with version 5.20 of transformers.",
    key=keys.VERSION,
    severity="note",
    when=lambda file: file.is_on(keys.FSDP) and file.whole(keys.VERSION, 2) == 1,
    says="given 1, which is deprecated; 2",
)


@rule.unenforced(f"{TRAINER}, when a Trainer is made", key=keys.BLOCKS)
def one_checkpointing(file: ConfigView) -> Refused:
    """Blocks are recomputed by FSDP or by the model."""
    if not (file.is_on(keys.FSDP) and file.flag(keys.BLOCKS)):
        return {}
    names = (keys.OLD_CHECKPOINTING, keys.CHECKPOINTING)
    return first_of(
        {
            f"given true beside {file.spelled(name)} true; this one alone": file.flag(name)
            for name in names
        }
    )


rule.unenforced(
    ARGUMENTS,
    name="checkpointing_by_its_new_name",
    holds="gradient_checkpointing goes with version 6 of transformers.",
    key=keys.OLD_CHECKPOINTING,
    severity="note",
    when=lambda file: keys.OLD_CHECKPOINTING in file.settings,
    says=f"is deprecated; {keys.CHECKPOINTING}",
)
rule.unenforced(
    f"{TRAINER}, when a Trainer is made",
    name="mesh_is_no_mapping",
    holds="The mesh arrives from JSON as a plain mapping, which Accelerator cannot use.",
    key=keys.MESH,
    when=lambda file: file[keys.MESH] is not None,
    says="given a mapping; PARALLELISM_CONFIG_*_SIZE in the environment, or code",
)


@rule(
    "accelerate/utils/dataclasses.py DeepSpeedPlugin",
    key="deepspeed",
    says="lacks zero_optimization; a mapping with stage 0 to 3",
)
def deepspeed_has_zero(file: ConfigView) -> bool:
    """DeepSpeed's part says how states are split."""
    given = file[keys.DEEPSPEED]
    return isinstance(given, dict) and bool(given) and "zero_optimization" not in given


@rule("transformers/integrations/deepspeed.py trainer_config_finalize")
def deepspeed_agrees(file: ConfigView) -> Violations:
    """Numbers that stand in both places are the same, or auto."""
    micro = file.whole(keys.BATCH, 8)
    steps = file.whole(keys.STEPS, 1)
    rate = as_number(file["learning_rate"])
    clipping = file["max_grad_norm"]
    numbers: dict[str, tuple[str, float | None]] = {
        "train_micro_batch_size_per_gpu": (keys.BATCH, micro),
        "gradient_accumulation_steps": (keys.STEPS, steps),
        "train_batch_size": ("their product over all GPUs", micro * steps * file.num_gpus),
        "gradient_clipping": ("max_grad_norm", 1.0 if clipping is None else as_number(clipping)),
        "optimizer.params.lr": ("learning_rate", rate),
        "optimizer.params.eps": ("adam_epsilon", as_number(file["adam_epsilon"])),
        "optimizer.params.weight_decay": ("weight_decay", as_number(file["weight_decay"])),
        "scheduler.params.warmup_max_lr": ("learning_rate", rate),
    }
    for inner, (key, own) in numbers.items():
        given = as_number(file[f"deepspeed.{inner}"])
        if None not in (given, own) and given != own:
            yield _disagrees(file, inner, f"{key} is {own:g}")
    for name in ("bf16", "fp16"):
        is_on = file.flag(name) or file.flag(f"{name}_full_eval")
        if file[f"deepspeed.{name}.enabled"] is (not is_on):
            yield _disagrees(file, f"{name}.enabled", f"{name} is not")


def _disagrees(file: ConfigView, inner: str, own: str) -> tuple[str, str]:
    """A key of DeepSpeed's part, in this file or in the one that it names, and what is wrong."""
    full, named = f"{keys.DEEPSPEED}.{inner}", file[keys.DEEPSPEED]
    is_here = not isinstance(named, str)
    given = f"given {file[full]}" if is_here else f"{named} has {inner} {file[full]}"
    return full, f'{given}, {own}; "auto"'


rule.unenforced(
    "torch/utils/data/sampler.py, when data is loaded",
    name="batch_is_positive",
    holds="A batch and an accumulation of nothing train nothing.",
    when=lambda file: [key for key in (keys.BATCH, keys.STEPS) if file.whole(key) < 1],
    says="given {given}; 1 or more",
)


rule(
    ARGUMENTS,
    name="logging_steps_not_zero",
    holds="Logging by steps needs their number.",
    key="logging_steps",
    when=lambda file: (
        file["logging_steps"] == 0 and file.word("logging_strategy", "steps") == "steps"
    ),
    says="given 0; above 0, or logging_strategy no",
)
rule(
    ARGUMENTS,
    name="warmup_not_negative",
    holds="Warm-up takes steps, or none.",
    key="warmup_steps",
    when=lambda file: (as_number(file["warmup_steps"]) or 0) < 0,
    says="given {given}; 0 or more",
)
rule(
    ARGUMENTS,
    name="prefetch_needs_workers",
    holds="Batches are loaded ahead by other processes.",
    key="dataloader_prefetch_factor",
    when=lambda file: (
        file["dataloader_prefetch_factor"] is not None
        and file.whole("dataloader_num_workers", 0) == 0
    ),
    says="given without workers; dataloader_num_workers above 0",
)


@rule(ARGUMENTS, key="load_best_model_at_end")
def best_model_is_saved(file: ConfigView) -> Refused:
    """The best model is found when it is evaluated and saved alike."""
    save = file.word("save_strategy", "steps")
    evaluate = file.word("eval_strategy", file.word("evaluation_strategy", "no"))
    message = f"given true with eval_strategy {evaluate}, save_strategy {save}; both alike"
    is_loaded = file.flag("load_best_model_at_end")
    return {message: is_loaded and save not in ("best", evaluate)}


rule.unenforced(
    "accelerate/utils/dataclasses.py FullyShardedDataParallelPlugin set_auto_wrap_policy",
    name="wrapped_class_is_the_models",
    holds="FSDP wraps layers by the name of their class.",
    key=WRAPPED,
    when=lambda file: of_another_model(file, WRAPPED) if file.is_on(keys.FSDP) else {},
)
rule.unenforced(
    f"{ARGUMENTS} _setup_devices",
    name="processors_are_asked_for",
    holds="Accelerators that are processors each train alone unless use_cpu is set.",
    key=keys.ON_PROCESSOR,
    when=lambda file: file.world.vendor == PROCESSOR and not file.flag(keys.ON_PROCESSOR),
    says="given false, the accelerators are processors; true",
)
rule.unenforced(
    "accelerate/state.py AcceleratorState",
    name="processors_hold_whole_replicas",
    holds="Neither FSDP nor DeepSpeed shards on processors, whatever the file says.",
    when=lambda file: [
        key
        for key in (keys.FSDP, keys.DEEPSPEED)
        if file.flag(keys.ON_PROCESSOR) and file.is_on(key)
    ],
    says="given beside use_cpu true, which trains whole replicas; neither, or no use_cpu",
)


rule.unenforced(
    "accelerate/utils/deepspeed.py map_pytorch_optim_to_deepspeed",
    name="offloaded_states_are_deepspeeds",
    holds="Offloaded states are those of DeepSpeed's own optimizer for the processor.",
    key=keys.OPTIM,
    severity="warning",
    when=lambda file: (
        keys.is_on_host(file.settings)
        and file.word(keys.OPTIM, _FUSED) not in (_FUSED, "adamw_torch", "lion_32bit")
    ),
    says="given {given}; DeepSpeedCPUAdam runs in its place, with states in fp32",
)


# What the programs themselves enforce at start, by the names of their tables.
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


llamafactory(
    "LLaMA-Factory src/llamafactory/model/model_utils/quantization.py configure_quantization",
    name="sharded_weights_have_4_bits",
    holds="Of quantised weights stage 3 and FSDP shard those of 4 bits.",
    key="quantization_bit",
    when=lambda file: (
        file["quantization_bit"] not in (None, 4)
        and (file[keys.STAGE] == 3 or file.is_on(keys.FSDP))
    ),
    says="given {given} where weights are sharded; 4, or stage 2",
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


@axolotl(
    f"{_VALIDATION} check_fsdp2_w_8bit_optimizer, check_fsdp_offload_w_8bit_optimizer",
    key=keys.OPTIM,
)
def eight_bit_states_can_be_sharded(file: ConfigView) -> Refused:
    """FSDP2 shards other states than those of bitsandbytes, FSDP1 offloads none of 8 bits."""
    given, is_second = file.word(keys.OPTIM), file.whole(keys.VERSION, 2) == 2
    is_on = file.is_on(keys.FSDP)
    is_bnb = given in ("adamw_8bit", "adamw_bnb_8bit")
    return {
        f"given {given} with fsdp_version 2; adamw_torch_8bit": is_on and is_second and is_bnb,
        f"given {given} with offload_params; adamw_torch, or no offload": (
            is_on and not is_second and "8bit" in given and file.flag(keys.OFFLOAD)
        ),
    }


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


for rules in (rule, trl):  # The other programs set them by themselves
    rules.unenforced(
        "deepspeed/runtime/zero/leaf_module_config.py; DeepSpeed pull request 4966, issue 7461",
        name="mixtures_have_leaf_modules",
        holds="Experts are gathered together.",
        key=keys.STAGE,
        severity="note",
        when=lambda file: (
            file[keys.STAGE] == 3
            and (file.world.decisions.get("model.num_experts") or 0) > 0
            and file[f"{keys.DEEPSPEED}.{LEAVES}"] is None
        ),
        says=HANG,
    )
