"""Rules of TrainingArguments and Trainer, and of the programs that hand their files to it."""

from planner.errors import did_you_mean
from planner.formats.accelerate.keys import of_another_model
from planner.formats.deepspeed.keys import add_leaf_modules
from planner.formats.settings import (
    ConfigView,
    Refused,
    Rules,
    Violations,
    as_number,
    first_of,
    one_of,
)
from planner.formats.trainer import keys
from planner.formats.trainer.keys import (
    BATCH,
    DEEPSPEED,
    FSDP,
    FSDP1_OPTIONS,
    FSDP2_OPTIONS,
    ON_PROCESSOR,
    OPTIM,
    STEPS,
    VERSION,
    FrontEnd,
)
from planner.spec.cluster import PROCESSOR

ARGUMENTS = "transformers/training_args.py"
WRAPPED = "fsdp_config.transformer_layer_cls_to_wrap"

rule = Rules(ConfigView)


def stated_rules(tool: FrontEnd) -> Rules[ConfigView]:
    """The rules that a program's table states."""
    made = Rules(ConfigView)
    made.add_table(tool.refused)
    return made


@rule(ARGUMENTS, key=OPTIM)
def optim_known(file: ConfigView) -> Refused:
    """The optimizer is one transformers has."""
    given, known = file.word(OPTIM, "adamw_torch_fused"), keys.optimizers()
    return {f"given {given!r}; {did_you_mean(given, known) or one_of(known)}": given not in known}


@rule(ARGUMENTS, key=FSDP)
def fsdp_options_known(file: ConfigView) -> Refused:
    """The old form of fsdp holds words transformers knows."""
    known = (*FSDP2_OPTIONS, *FSDP1_OPTIONS)
    return {
        f"given {each!r}; true, with the rest in fsdp_config": each not in known
        for each in keys.options(file.settings)
    }


@rule(ARGUMENTS, key=FSDP)
def fsdp2_shards_fully(file: ConfigView) -> Refused:
    """Hybrid strategies by name are FSDP1's."""
    if file.whole(VERSION, 2) != 2:
        return {}
    instead = "true, and a mesh for replicas of the sharding group"
    return first_of(
        {f"given {each}; {instead}": each in FSDP1_OPTIONS for each in keys.options(file.settings)}
    )


@rule("accelerate/utils/dataclasses.py DeepSpeedPlugin", key="deepspeed")
def deepspeed_has_zero(file: ConfigView) -> Refused:
    """DeepSpeed's part says how states are split."""
    given = file[DEEPSPEED]
    is_other = isinstance(given, dict) and given and "zero_optimization" not in given
    return {"lacks zero_optimization; a mapping with stage 0 to 3": is_other}


@rule("transformers/integrations/deepspeed.py trainer_config_finalize")
def deepspeed_agrees(file: ConfigView) -> Violations:
    """Numbers that stand in both places are the same, or auto."""
    micro = file.whole(BATCH, 8)
    steps = file.whole(STEPS, 1)
    rate = as_number(file["learning_rate"])
    clipping = file["max_grad_norm"]
    numbers: dict[str, tuple[str, float | None]] = {
        "train_micro_batch_size_per_gpu": (BATCH, micro),
        "gradient_accumulation_steps": (STEPS, steps),
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
    full, named = f"{DEEPSPEED}.{inner}", file[DEEPSPEED]
    given = f"{named} has {inner}" if isinstance(named, str) else "given"
    return full, f'{given} {file[full]}, {own}; "auto"'


rule.unenforced(
    "accelerate/utils/dataclasses.py FullyShardedDataParallelPlugin set_auto_wrap_policy",
    name="wrapped_class_is_the_models",
    holds="FSDP wraps layers by the name of their class.",
    key=WRAPPED,
    when=lambda file: of_another_model(file, WRAPPED) if file[FSDP] else {},
)
rule.unenforced(
    f"{ARGUMENTS} _setup_devices",
    name="processors_are_asked_for",
    holds="Accelerators that are processors each train alone unless use_cpu is set.",
    key=ON_PROCESSOR,
    when=lambda file: {
        "given false, the accelerators are processors; true": (
            file.world.vendor == PROCESSOR and not file.flag(ON_PROCESSOR)
        )
    },
)

trl = Rules(ConfigView)
RULES = {"trl": trl}


@trl("TRL trl/trainer/sft_trainer.py", key="loss_type")
def one_loss(file: ConfigView) -> Refused:
    """The loss is chunked by TRL or by Liger."""
    is_stated = "loss_type" in file.settings and file.settings["loss_type"].line > 0
    is_chunked = is_stated and file.word("loss_type") == "chunked_nll"
    is_liger = any(file.flag(name) for name in ("use_liger_kernel", "use_liger"))
    text = "given chunked_nll beside use_liger_kernel true; nll, or none of it"
    return {text: is_chunked and is_liger}


for rules in (rule, trl):  # The other programs set them by themselves
    add_leaf_modules(rules, f"{DEEPSPEED}.")
