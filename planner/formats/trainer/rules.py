"""Rules of TrainingArguments and Trainer."""

from planner.formats.accelerate.wrapped import of_another_model
from planner.formats.format import FormatRule, World
from planner.formats.rules import Rules, Said
from planner.formats.settings import Settings, as_whole, flag, one_of, whole, word
from planner.formats.trainer import keys
from planner.spec.cluster import PROCESSOR
from planner.spelling import did_you_mean

rule = Rules()
ARGUMENTS = "transformers/training_args.py"
TRAINER = "transformers/trainer.py"
DEEPSPEED = "transformers/integrations/deepspeed.py trainer_config_finalize"
POLICIES = ("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP")
AGREE = {
    "train_micro_batch_size_per_gpu": (keys.BATCH, 8),
    "gradient_accumulation_steps": (keys.STEPS, 1),
}
"""Numbers that stand in both places, with the defaults of TrainingArguments."""


@rule(ARGUMENTS)
def one_precision(settings: Settings, _: World) -> Said:
    """Products are in one precision."""
    if flag(settings, "fp16") and flag(settings, "bf16"):
        yield "fp16", "given true beside bf16 true; one of them"


@rule(ARGUMENTS)
def one_evaluation_precision(settings: Settings, _: World) -> Said:
    """Evaluation is in one precision."""
    names = ("fp16_full_eval", "bf16_full_eval")
    if all(flag(settings, name) for name in names):
        yield names[0], "given true beside bf16_full_eval true; one of them"


@rule(ARGUMENTS)
def optim_known(settings: Settings, _: World) -> Said:
    """The optimizer is one transformers has."""
    given = word(settings, "optim", "adamw_torch_fused")
    if given not in keys.optimizers():
        hint = did_you_mean(given, keys.optimizers()) or one_of(keys.optimizers())
        yield "optim", f"given {given!r}; {hint}"


@rule(ARGUMENTS)
def fsdp_options_known(settings: Settings, _: World) -> Said:
    """The old form of fsdp holds words transformers knows."""
    for each in keys.options(settings):
        if each not in (*keys.FSDP2_OPTIONS, *keys.FSDP1_OPTIONS):
            message = f"given {each!r}; true, with the rest in fsdp_config"
            yield "fsdp", message


@rule(ARGUMENTS)
def fsdp2_shards_fully(settings: Settings, _: World) -> Said:
    """Hybrid strategies by name are FSDP1's."""
    given = [each for each in keys.options(settings) if each in keys.FSDP1_OPTIONS]
    if given and whole(settings, keys.VERSION, 2) == 2:
        message = f"given {given[0]}; true, and a mesh for replicas of the sharding group"
        yield "fsdp", message


@rule(ARGUMENTS)
def wrap_policy_known(settings: Settings, _: World) -> Said:
    """The policy is one Accelerate has."""
    key = "fsdp_config.auto_wrap_policy"
    given = word(settings, key, POLICIES[0])
    if keys.is_on(settings, "fsdp") and given not in POLICIES:
        yield key, f"given {given!r}; {one_of(POLICIES)}"


@rule(f"{ARGUMENTS} _process_fsdp_args", enforced=False, severity="warning")
def fsdp_config_is_used(settings: Settings, _: World) -> Said:
    """fsdp_config does nothing by itself."""
    if keys.is_on(settings, "fsdp_config") and not keys.is_on(settings, "fsdp"):
        yield "fsdp_config", "given without fsdp; fsdp true as well"


@rule("accelerate/state.py", enforced=False)
def fsdp_or_deepspeed(settings: Settings, _: World) -> Said:
    """One of them shards; with both, DeepSpeed does and FSDP is left out."""
    if keys.is_on(settings, "fsdp") and keys.is_on(settings, "deepspeed"):
        yield "fsdp", "given beside deepspeed; one of them"


@rule(ARGUMENTS, enforced=False, severity="note")
def fsdp2_is_used(settings: Settings, _: World) -> Said:
    """FSDP1 goes with version 5.20 of transformers."""
    key = keys.VERSION
    if keys.is_on(settings, "fsdp") and whole(settings, key, 2) == 1:
        yield key, "given 1, which is deprecated; 2"


@rule(f"{TRAINER}, when a Trainer is made", enforced=False)
def one_checkpointing(settings: Settings, _: World) -> Said:
    """Blocks are recomputed by FSDP or by the model."""
    key = keys.BLOCKS
    names = (keys.OLD_CHECKPOINTING, keys.CHECKPOINTING)
    both = [settings[name].key for name in names if flag(settings, name)]
    if keys.is_on(settings, "fsdp") and flag(settings, key) and both:
        yield key, f"given true beside {both[0]} true; this one alone"


@rule(ARGUMENTS, enforced=False, severity="note")
def checkpointing_by_its_new_name(settings: Settings, _: World) -> Said:
    """gradient_checkpointing goes with version 6 of transformers."""
    if keys.OLD_CHECKPOINTING in settings:
        message = f"is deprecated; {keys.CHECKPOINTING}"
        yield keys.OLD_CHECKPOINTING, message


@rule(f"{TRAINER}, when a Trainer is made", enforced=False)
def mesh_is_no_mapping(settings: Settings, _: World) -> Said:
    """From JSON the mesh arrives as a plain mapping, which Accelerator cannot use."""
    if keys.MESH in settings and settings[keys.MESH].value is not None:
        message = "given a mapping; PARALLELISM_CONFIG_*_SIZE in the environment, or code"
        yield keys.MESH, message


@rule("accelerate/utils/dataclasses.py DeepSpeedPlugin")
def deepspeed_has_zero(settings: Settings, _: World) -> Said:
    """DeepSpeed's part says how states are split."""
    given = settings["deepspeed"].value if "deepspeed" in settings else None
    if isinstance(given, dict) and given and "zero_optimization" not in given:
        message = "lacks zero_optimization; a mapping with stage 0 to 3"
        yield "deepspeed", message


@rule(DEEPSPEED)
def deepspeed_agrees(settings: Settings, _: World) -> Said:
    """Numbers that stand in both places are the same, or auto."""
    for name, (key, default) in AGREE.items():
        full = f"deepspeed.{name}"
        given = as_whole(settings[full].value) if full in settings else None
        own = whole(settings, key, default)
        if given is not None and given != own:
            yield full, f'given {given}, {key} is {own}; "auto"'
    for name in ("bf16", "fp16"):
        full = f"deepspeed.{name}.enabled"
        given_flag = settings[full].value if full in settings else None
        if isinstance(given_flag, bool) and given_flag != flag(settings, name):
            yield full, f'given {given_flag}, {name} is not; "auto"'


@rule("torch/utils/data/sampler.py, when data is loaded", enforced=False)
def batch_is_positive(settings: Settings, _: World) -> Said:
    """A batch and an accumulation of nothing train nothing."""
    for key in (keys.BATCH, keys.STEPS):
        if (given := whole(settings, key, 1)) < 1:
            yield key, f"given {given}; 1 or more"


@rule(ARGUMENTS)
def logging_steps_not_zero(settings: Settings, _: World) -> Said:
    """Logging by steps needs their number."""
    given = settings["logging_steps"].value if "logging_steps" in settings else None
    by_steps = word(settings, "logging_strategy", "steps") == "steps"
    if by_steps and isinstance(given, int | float) and given == 0:
        yield "logging_steps", "given 0; above 0, or logging_strategy no"


@rule(ARGUMENTS)
def warmup_not_negative(settings: Settings, _: World) -> Said:
    """Warm-up takes steps, or none."""
    given = settings["warmup_steps"].value if "warmup_steps" in settings else None
    if isinstance(given, int | float) and given < 0:
        yield "warmup_steps", f"given {given}; 0 or more"


@rule(ARGUMENTS)
def prefetch_needs_workers(settings: Settings, _: World) -> Said:
    """Batches are loaded ahead by other processes."""
    key = "dataloader_prefetch_factor"
    is_given = key in settings and settings[key].value is not None
    if is_given and whole(settings, "dataloader_num_workers", 0) == 0:
        yield key, "given without workers; dataloader_num_workers above 0"


@rule(ARGUMENTS)
def best_model_is_saved(settings: Settings, _: World) -> Said:
    """The best model is found when it is evaluated and saved alike."""
    save = word(settings, "save_strategy", "steps")
    evaluate = word(settings, "eval_strategy", word(settings, "evaluation_strategy", "no"))
    loads = flag(settings, "load_best_model_at_end")
    if loads and save not in ("best", evaluate):
        message = f"given true with eval_strategy {evaluate}, save_strategy {save}; both alike"
        yield "load_best_model_at_end", message


@rule(
    "accelerate/utils/dataclasses.py FullyShardedDataParallelPlugin set_auto_wrap_policy",
    enforced=False,
)
def wrapped_class_is_the_models(settings: Settings, world: World) -> Said:
    """FSDP wraps layers by the name of their class."""
    key = "fsdp_config.transformer_layer_cls_to_wrap"
    message = of_another_model(settings, key, world.decisions.get("model.family"))
    if keys.is_on(settings, "fsdp") and message:
        yield key, message


@rule(f"{ARGUMENTS} _setup_devices", enforced=False)
def processors_are_asked_for(settings: Settings, world: World) -> Said:
    """Where the accelerators are processors, each trains alone unless Trainer is told."""
    if world.vendor == PROCESSOR and not flag(settings, keys.ON_PROCESSOR):
        yield keys.ON_PROCESSOR, "given false, the accelerators are processors; true"


@rule("accelerate/state.py AcceleratorState", enforced=False)
def processors_hold_whole_replicas(settings: Settings, _: World) -> Said:
    """On processors neither FSDP nor DeepSpeed shards, whatever the file says."""
    for key in (keys.FSDP, keys.DEEPSPEED):
        if flag(settings, keys.ON_PROCESSOR) and keys.is_on(settings, key):
            yield (
                key,
                "given beside use_cpu true, which trains whole replicas; neither, or no use_cpu",
            )


RULES: tuple[FormatRule, ...] = tuple(rule)
