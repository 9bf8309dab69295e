"""Rules of TrainingArguments and Trainer."""

from planner.formats.accelerate.keys import of_another_model
from planner.formats.accelerate.rules import POLICIES
from planner.formats.rules import ConfigView, Refused, Rules, Violations, first_of
from planner.formats.settings import as_number, as_whole, one_of
from planner.formats.trainer import keys
from planner.spec.cluster import PROCESSOR
from planner.spelling import did_you_mean

ARGUMENTS = "transformers/training_args.py"
WRAPPED = "fsdp_config.transformer_layer_cls_to_wrap"
TRAINER = "transformers/trainer.py"


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
    numbers = (
        ("deepspeed.train_micro_batch_size_per_gpu", keys.BATCH, 8),
        ("deepspeed.gradient_accumulation_steps", keys.STEPS, 1),
    )
    for full, key, default in numbers:
        given, own = as_whole(file[full]), file.whole(key, default)
        if given not in (None, own):
            yield full, f'given {given}, {key} is {own}; "auto"'
    for name in ("bf16", "fp16"):
        full = f"deepspeed.{name}.enabled"
        if file[full] is (not file.flag(name)):
            yield full, f'given {file[full]}, {name} is not; "auto"'


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
