"""What verl refuses when a job starts, or in its first step. Settings are those of a word."""

from planner.formats.format import World
from planner.formats.rules import Rules, Said
from planner.formats.settings import Settings, flag, given, whole
from planner.formats.verl.batch import longest, sequences
from planner.formats.verl.program import ENGINE, FSDP, GPUS

RULES = Rules()
_ACTOR = "verl/workers/config/actor.py"
_WORKERS = "verl/workers/fsdp_workers.py"


def _known(settings: Settings, *names: str) -> bool:
    return all(given(settings, name) is not None for name in names)


@RULES(f"{_ACTOR} ActorConfig.__post_init__")
def one_micro_batch_is_stated(settings: Settings, _: World) -> Said:
    """Sequences per GPU, or of all GPUs, unless tokens bound a micro-batch."""
    if "micro_of_all" not in settings or not _known(settings, "dynamic"):
        return
    own, of_all = settings["micro"], settings["micro_of_all"]
    if flag(settings, "dynamic"):
        return
    if own.value is not None and of_all.value is not None:
        yield "micro_of_all", f"given beside {own.key}; one of them, the latter"
    if not own.line and not of_all.line:
        yield "micro", "given nowhere, nor is use_dynamic_bsz true; a number of sequences"


@RULES(f"{_ACTOR} ActorConfig.validate")
def prompts_of_a_step_make_mini_batches(settings: Settings, _: World) -> Said:
    """A mini-batch is taken from the prompts of a step."""
    if not _known(settings, "batch", "sequences", "dynamic") or flag(settings, "dynamic"):
        return
    batch, mini = whole(settings, "batch", 0), whole(settings, "sequences", 0)
    if batch < mini:
        what = f"given {mini}; at most {settings['batch'].key}, {batch}"
        yield ("sequences" if settings["sequences"].line else "batch"), what


def _of_all(settings: Settings) -> int:
    """Sequences of a micro-batch on all GPUs; 0 where they are stated otherwise, or not at all."""
    if "micro_of_all" not in settings or not _known(settings, "micro_of_all", "dynamic"):
        return 0
    return 0 if flag(settings, "dynamic") else whole(settings, "micro_of_all", 0)


@RULES(f"{_ACTOR} ActorConfig.validate")
def micro_batches_of_all_gpus_divide_a_mini_batch(settings: Settings, _: World) -> Said:
    """The old micro-batch of all GPUs divides the prompts of a mini-batch."""
    micro, mini = _of_all(settings), whole(settings, "sequences", 0)
    if micro > 0 and mini % micro:
        yield "micro_of_all", f"given {micro}; a divisor of {settings['sequences'].key}, {mini}"


@RULES(f"{_ACTOR} ActorConfig.validate")
def every_gpu_has_a_sequence(settings: Settings, _: World) -> Said:
    """The old micro-batch of all GPUs has a sequence for each, or for those that split it."""
    micro, num_gpus = _of_all(settings), whole(settings, GPUS, 0)
    ranks = max(whole(settings, "sequence_ranks", 1), 1) if _is_fsdp(settings) else 1
    if micro > 0 and micro * ranks < num_gpus:
        split = f" with {ranks} on a sequence" if ranks > 1 else ""
        least = -(-num_gpus // ranks)
        yield "micro_of_all", f"given {micro}; at least {least} on {num_gpus} GPUs{split}"


@RULES(f"{_WORKERS} ActorRolloutRefWorker.__init__; verl/trainer/fsdp_sft_trainer.py")
def micro_batches_fill_a_mini_batch(settings: Settings, _: World) -> Said:
    """The share of a rank is so many micro-batches."""
    names = ("sequences", "micro", *(("group",) if "group" in settings else ()))
    if not _known(settings, *names) or flag(settings, "dynamic") or not _is_fsdp(settings):
        return
    ranks = whole(settings, "sequence_ranks", 1)
    micro, total, num_gpus = (
        whole(settings, "micro", 0),
        sequences(settings),
        whole(settings, GPUS, 0),
    )
    dp = num_gpus // ranks if ranks and num_gpus % ranks == 0 else 0
    if not dp or micro < 1:
        return
    share = total // dp
    if share % micro or not share:
        whole_of = f"{total} sequences on {dp} replicas are {share} each"
        yield "micro", f"given {micro}; a divisor of {share}: {whole_of}"


@RULES(f"{_ACTOR} FSDPActorConfig.validate; verl/trainer/fsdp_sft_trainer.py")
def split_sequences_are_not_padded(settings: Settings, _: World) -> Said:
    """Ulysses needs the padding removed."""
    ranks = whole(settings, "sequence_ranks", 1)
    place = settings.get("packed")
    is_off = place is not None and place.value is False
    if ranks > 1 and is_off and _is_fsdp(settings):
        yield "packed", f"given false with {settings['sequence_ranks'].key} {ranks}; true"


@RULES("verl/utils/seqlen_balancing.py rearrange_micro_batches")
def bound_holds_a_sequence(settings: Settings, _: World) -> Said:
    """A micro-batch that tokens bound holds the longest sequence."""
    names = (
        "tokens",
        "dynamic",
        *(("prompt", "response") if "prompt" in settings else ("length",)),
    )
    if "tokens" not in settings or not _known(settings, *names) or not _is_fsdp(settings):
        return
    ranks, bound, most = whole(settings, "sequence_ranks", 1), settings["tokens"], longest(settings)
    is_known = settings["sequence_ranks"].value is not None and "prompt" in settings
    if is_known and flag(settings, "dynamic") and whole(settings, "tokens", 0) * ranks < most.value:
        times = f" times {ranks} ranks" if ranks > 1 else ""
        need = f"{most.key} is {most.value}"
        yield "tokens", f"given {bound.value}{times}; {need}, and one sequence must fit"


def _is_fsdp(settings: Settings) -> bool:
    return ENGINE not in settings or settings[ENGINE].value in FSDP
