"""What the programs themselves refuse when they start, beyond the rules of TrainingArguments."""

from collections.abc import Mapping

from planner.formats.format import FormatRule, World
from planner.formats.rules import Rules, Said
from planner.formats.settings import Settings, flag, given, whole, word
from planner.formats.trainer import keys

llamafactory, axolotl, swift, trl = Rules(), Rules(), Rules(), Rules()
_PARSER = "LLaMA-Factory src/llamafactory/hparams/parser.py"
_FINETUNING = "LLaMA-Factory src/llamafactory/hparams/finetuning_args.py"
_VALIDATION = "axolotl src/axolotl/utils/schemas/validation.py"
_PEFT = "axolotl src/axolotl/utils/schemas/peft.py"
_SFT = "ms-swift swift/arguments/sft_args.py"


@llamafactory(f"{_PARSER} _verify_model_args")
def quantised_weights_have_adapters(settings: Settings, _: World) -> Said:
    """Weights in 4 or 8 bits are not trained themselves."""
    kind = word(settings, "finetuning_type", "lora")
    bits = given(settings, "quantization_bit")
    if bits is not None and kind not in ("lora", "oft"):
        yield "quantization_bit", f"given {bits} with finetuning_type {kind}; lora or oft"


@llamafactory(_FINETUNING)
def galore_and_its_kin_train_all_weights(settings: Settings, _: World) -> Said:
    """GaLore, APOLLO and BAdam are not for LoRA."""
    for key in ("use_galore", "use_apollo", "use_badam"):
        if flag(settings, key) and word(settings, "finetuning_type", "lora") == "lora":
            yield key, "given true with finetuning_type lora; finetuning_type full"


@llamafactory(f"{_PARSER} get_train_args")
def pure_bf16_without_zero3(settings: Settings, _: World) -> Said:
    """ZeRO 3 keeps weights of its own."""
    if flag(settings, "pure_bf16") and given(settings, keys.STAGE) == 3:
        yield "pure_bf16", "given true with a DeepSpeed file of stage 3; bf16 true"


@axolotl(f"{_PEFT} validate_qlora")
def qlora_loads_4_bits(settings: Settings, _: World) -> Said:
    """QLoRA is adapters beside weights in 4 bits."""
    if word(settings, "adapter") == "qlora" and not flag(settings, "load_in_4bit"):
        shown = given(settings, "load_in_4bit")
        yield "load_in_4bit", f"given {shown} with adapter qlora; true"


@axolotl(f"{_PEFT} validate_adapter")
def quantised_weights_have_an_adapter(settings: Settings, _: World) -> Said:
    """Weights in 4 or 8 bits are not trained themselves."""
    for key in ("load_in_4bit", "load_in_8bit"):
        if flag(settings, key) and not given(settings, "adapter"):
            yield key, "given true without an adapter; adapter qlora or lora, or false"


@axolotl(f"{_VALIDATION} check_warmup")
def one_warm_up(settings: Settings, _: World) -> Said:
    """Warm-up is so many steps, or a share of them."""
    if given(settings, "warmup_steps") and given(settings, "warmup_ratio"):
        yield "warmup_ratio", "given beside warmup_steps; one of them"


@axolotl(f"{_VALIDATION} check_saves")
def one_way_to_save(settings: Settings, _: World) -> Said:
    """Checkpoints are written so many times per epoch, or every so many steps."""
    if given(settings, "saves_per_epoch") and given(settings, "save_steps"):
        yield "saves_per_epoch", "given beside save_steps; one of them"


@axolotl(f"{_VALIDATION} check_evals")
def one_way_to_evaluate(settings: Settings, _: World) -> Said:
    """Evaluation is so many times per epoch, or every so many steps."""
    if given(settings, "evals_per_epoch") and given(settings, "eval_steps"):
        yield "evals_per_epoch", "given beside eval_steps; one of them"


@swift(f"{_SFT} _init_fsdp")
def one_engine_shards(settings: Settings, _: World) -> Said:
    """FSDP and DeepSpeed both shard."""
    if keys.is_on(settings, keys.FSDP) and keys.is_on(settings, keys.DEEPSPEED):
        yield keys.FSDP, "given beside deepspeed; one of them"


@swift(f"{_SFT} _init_deepspeed")
def tensor_parallelism_has_deepspeed(settings: Settings, _: World) -> Said:
    """DeepSpeed splits the weights."""
    key = "deepspeed_autotp_size"
    size = whole(settings, key, 1)
    if size > 1 and not keys.is_on(settings, keys.DEEPSPEED):
        yield key, f"given {size} without deepspeed; deepspeed as well"


@trl("TRL trl/trainer/sft_trainer.py")
def one_loss(settings: Settings, _: World) -> Said:
    """The loss is chunked by TRL or by Liger."""
    is_stated = "loss_type" in settings and settings["loss_type"].line
    is_chunked = is_stated and word(settings, "loss_type") == "chunked_nll"
    if is_chunked and any(flag(settings, name) for name in ("use_liger_kernel", "use_liger")):
        yield "loss_type", "given chunked_nll beside use_liger_kernel true; nll, or none of it"


RULES: Mapping[str, tuple[FormatRule, ...]] = {
    "llamafactory": tuple(llamafactory),
    "axolotl": tuple(axolotl),
    "ms-swift": tuple(swift),
    "trl": tuple(trl),
}
"""By the program's table."""
