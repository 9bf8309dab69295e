"""Rules of TrainingArguments and Trainer."""

from collections.abc import Iterator

from planner.formats.format import Broken, FormatRule, World, rule
from planner.formats.settings import Settings, as_whole, broken, flag, one_of, whole, word
from planner.formats.trainer import sections
from planner.formats.trainer.keys import known_keys
from planner.formats.trainer.read import BATCH, MESH, OLD_CHECKPOINTING, STEPS, is_on, options
from planner.spelling import did_you_mean

ARGUMENTS = "transformers/training_args.py"
TRAINER = "transformers/trainer.py"
DEEPSPEED = "transformers/integrations/deepspeed.py trainer_config_finalize"
FSDP1_ONLY = ("hybrid_shard", "hybrid_shard_zero2", "no_shard")
OPTIONS = ("full_shard", "shard_grad_op", "offload", "auto_wrap", *FSDP1_ONLY)
POLICIES = ("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP")
AGREE = {
    "train_micro_batch_size_per_gpu": (BATCH, 8),
    "gradient_accumulation_steps": (STEPS, 1),
}
"""Numbers that stand in both places, with the defaults of TrainingArguments."""


def one_precision(settings: Settings, _: World) -> Iterator[Broken]:
    """Products are in one precision."""
    if flag(settings, "fp16", default=False) and flag(settings, "bf16", default=False):
        yield broken(settings, "fp16", "given true beside bf16 true; one of them")


def one_evaluation_precision(settings: Settings, _: World) -> Iterator[Broken]:
    """Evaluation is in one precision."""
    names = ("fp16_full_eval", "bf16_full_eval")
    if all(flag(settings, name, default=False) for name in names):
        yield broken(settings, names[0], "given true beside bf16_full_eval true; one of them")


def optim_known(settings: Settings, _: World) -> Iterator[Broken]:
    """The optimizer is one transformers has."""
    given = word(settings, "optim", "adamw_torch_fused")
    if given not in known_keys().optim:
        hint = did_you_mean(given, known_keys().optim) or one_of(known_keys().optim)
        yield broken(settings, "optim", f"given {given!r}; {hint}")


def fsdp_options_known(settings: Settings, _: World) -> Iterator[Broken]:
    """The old form of fsdp holds words transformers knows."""
    for each in options(settings):
        if each not in OPTIONS:
            message = f"given {each!r}; true, with the rest in fsdp_config"
            yield broken(settings, "fsdp", message)


def fsdp2_shards_fully(settings: Settings, _: World) -> Iterator[Broken]:
    """Hybrid strategies by name are FSDP1's."""
    given = [each for each in options(settings) if each in FSDP1_ONLY]
    if given and whole(settings, sections.FSDP_KEYS[0], 2) == 2:
        message = f"given {given[0]}; true, and a mesh for replicas of the sharding group"
        yield broken(settings, "fsdp", message)


def wrap_policy_known(settings: Settings, _: World) -> Iterator[Broken]:
    """The policy is one Accelerate has."""
    key = "fsdp_config.auto_wrap_policy"
    given = word(settings, key, POLICIES[0])
    if is_on(settings, "fsdp") and given not in POLICIES:
        yield broken(settings, key, f"given {given!r}; {one_of(POLICIES)}")


def fsdp_config_is_used(settings: Settings, _: World) -> Iterator[Broken]:
    """fsdp_config does nothing by itself."""
    if is_on(settings, "fsdp_config") and not is_on(settings, "fsdp"):
        yield broken(settings, "fsdp_config", "given without fsdp; fsdp true as well")


def fsdp_or_deepspeed(settings: Settings, _: World) -> Iterator[Broken]:
    """One of them shards; with both, DeepSpeed does and FSDP is left out."""
    if is_on(settings, "fsdp") and is_on(settings, "deepspeed"):
        yield broken(settings, "fsdp", "given beside deepspeed; one of them")


def fsdp2_is_used(settings: Settings, _: World) -> Iterator[Broken]:
    """FSDP1 goes with version 5.20 of transformers."""
    key = sections.FSDP_KEYS[0]
    if is_on(settings, "fsdp") and whole(settings, key, 2) == 1:
        yield broken(settings, key, "given 1, which is deprecated; 2")


def one_checkpointing(settings: Settings, _: World) -> Iterator[Broken]:
    """Blocks are recomputed by FSDP or by the model."""
    key = sections.FSDP_KEYS[3]
    both = any(
        flag(settings, name, default=False) for name in (sections.CHECKPOINTING, OLD_CHECKPOINTING)
    )
    if is_on(settings, "fsdp") and flag(settings, key, default=False) and both:
        message = f"given true beside {sections.CHECKPOINTING} true; this one alone"
        yield broken(settings, key, message)


def checkpointing_by_its_new_name(settings: Settings, _: World) -> Iterator[Broken]:
    """gradient_checkpointing goes with version 6 of transformers."""
    if OLD_CHECKPOINTING in settings:
        message = f"is deprecated; {sections.CHECKPOINTING}"
        yield broken(settings, OLD_CHECKPOINTING, message)


def mesh_is_no_mapping(settings: Settings, _: World) -> Iterator[Broken]:
    """From JSON the mesh arrives as a plain mapping, which Accelerator cannot use."""
    if MESH in settings and settings[MESH].value is not None:
        message = "given a mapping; PARALLELISM_CONFIG_*_SIZE in the environment, or code"
        yield broken(settings, MESH, message)


def deepspeed_has_zero(settings: Settings, _: World) -> Iterator[Broken]:
    """DeepSpeed's part says how states are split."""
    given = settings["deepspeed"].value if "deepspeed" in settings else None
    if isinstance(given, dict) and given and "zero_optimization" not in given:
        message = "lacks zero_optimization; a mapping with stage 0 to 3"
        yield broken(settings, "deepspeed", message)


def deepspeed_agrees(settings: Settings, _: World) -> Iterator[Broken]:
    """Numbers that stand in both places are the same, or auto."""
    for name, (key, default) in AGREE.items():
        full = f"deepspeed.{name}"
        given = as_whole(settings[full].value) if full in settings else None
        own = whole(settings, key, default)
        if given is not None and given != own:
            yield broken(settings, full, f'given {given}, {key} is {own}; "auto"')
    for name in ("bf16", "fp16"):
        full = f"deepspeed.{name}.enabled"
        given_flag = settings[full].value if full in settings else None
        if isinstance(given_flag, bool) and given_flag != flag(settings, name, default=False):
            yield broken(settings, full, f'given {given_flag}, {name} is not; "auto"')


def batch_is_positive(settings: Settings, _: World) -> Iterator[Broken]:
    """A batch and an accumulation of nothing train nothing."""
    for key in (BATCH, STEPS):
        if (given := whole(settings, key, 1)) < 1:
            yield broken(settings, key, f"given {given}; 1 or more")


def logging_steps_not_zero(settings: Settings, _: World) -> Iterator[Broken]:
    """Logging by steps needs their number."""
    given = settings["logging_steps"].value if "logging_steps" in settings else None
    by_steps = word(settings, "logging_strategy", "steps") == "steps"
    if by_steps and isinstance(given, int | float) and given == 0:
        yield broken(settings, "logging_steps", "given 0; above 0, or logging_strategy no")


def warmup_not_negative(settings: Settings, _: World) -> Iterator[Broken]:
    """Warm-up takes steps, or none."""
    given = settings["warmup_steps"].value if "warmup_steps" in settings else None
    if isinstance(given, int | float) and given < 0:
        yield broken(settings, "warmup_steps", f"given {given}; 0 or more")


def prefetch_needs_workers(settings: Settings, _: World) -> Iterator[Broken]:
    """Batches are loaded ahead by other processes."""
    key = "dataloader_prefetch_factor"
    is_given = key in settings and settings[key].value is not None
    if is_given and whole(settings, "dataloader_num_workers", 0) == 0:
        yield broken(settings, key, "given without workers; dataloader_num_workers above 0")


def best_model_is_saved(settings: Settings, _: World) -> Iterator[Broken]:
    """The best model is found when it is evaluated and saved alike."""
    save = word(settings, "save_strategy", "steps")
    evaluate = word(settings, "eval_strategy", word(settings, "evaluation_strategy", "no"))
    loads = flag(settings, "load_best_model_at_end", default=False)
    if loads and save not in ("best", evaluate):
        message = f"given true with eval_strategy {evaluate}, save_strategy {save}; both alike"
        yield broken(settings, "load_best_model_at_end", message)


RULES: tuple[FormatRule, ...] = (
    rule(one_precision, ARGUMENTS),
    rule(one_evaluation_precision, ARGUMENTS),
    rule(optim_known, ARGUMENTS),
    rule(fsdp_options_known, ARGUMENTS),
    rule(fsdp2_shards_fully, ARGUMENTS),
    rule(wrap_policy_known, ARGUMENTS),
    rule(
        fsdp_config_is_used, f"{ARGUMENTS} _process_fsdp_args", enforced=False, severity="warning"
    ),
    rule(fsdp_or_deepspeed, "accelerate/state.py", enforced=False),
    rule(fsdp2_is_used, ARGUMENTS, enforced=False, severity="note"),
    rule(one_checkpointing, f"{TRAINER}, when a Trainer is made", enforced=False),
    rule(checkpointing_by_its_new_name, ARGUMENTS, enforced=False, severity="note"),
    rule(mesh_is_no_mapping, f"{TRAINER}, when a Trainer is made", enforced=False),
    rule(deepspeed_has_zero, "accelerate/utils/dataclasses.py DeepSpeedPlugin"),
    rule(deepspeed_agrees, DEEPSPEED),
    rule(batch_is_positive, "torch/utils/data/sampler.py, when data is loaded", enforced=False),
    rule(logging_steps_not_zero, ARGUMENTS),
    rule(warmup_not_negative, ARGUMENTS),
    rule(prefetch_needs_workers, ARGUMENTS),
    rule(best_model_is_saved, ARGUMENTS),
)
