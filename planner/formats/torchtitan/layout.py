"""Pipeline in torchtitan's words: schedules, model parts, layers of each stage.

Sources: torchtitan/distributed/pipeline_parallel.py, torch/distributed/pipelining/schedules.py.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import count

from planner.cost.context import Context
from planner.formats.decision import Decided, KeyMapping, KeyValue, told
from planner.formats.rules import Refused
from planner.formats.settings import Settings, given, whole, word
from planner.formats.torchtitan import keys as option
from planner.formats.torchtitan.keys import config_of
from planner.schedules.closed_form import chunk_layers
from planner.spec.strategy import V_SHAPED, Strategy

# By the planner's name; interleaved is 1f1b with several chunks per stage.
SCHEDULE_NAMES = {
    "1f1b": "1F1B",
    "interleaved": "Interleaved1F1B",
    "gpipe": "GPipe",
    "zb-interleaved": "InterleavedZeroBubble",
    "zb-v": "ZBVZeroBubble",
    "dualpipe-v": "DualPipeV",
}
OTHER_SCHEDULES = ("LoopedBFS", "PipelineScheduleSingle", "PipelineScheduleMulti")
# Schedules with one chunk per stage.
SINGLE = ("1f1b", "gpipe")
MAX_PARTS = 100_000


def schedule_named(name: str) -> str:
    """The planner's name of a schedule; ``other``: torch has it, empty: there is none."""
    by_name = {theirs.lower(): ours for ours, theirs in SCHEDULE_NAMES.items()}
    others = {theirs.lower(): "other" for theirs in OTHER_SCHEDULES}
    return {**others, **by_name}.get(name.lower(), "")


def parts_of(strategy: Strategy) -> list[list[str]]:
    """Names of the modules of every model part, from embedding to head."""
    numbers = count()
    counts: Sequence[int] = chunk_layers(strategy.layers_per_stage, strategy.vpp)
    if strategy.vpp > 1 and strategy.schedule in V_SHAPED:
        halves = [layers // 2 for layers in strategy.layers_per_stage]
        counts = [*halves, *reversed(halves)]
    parts = [[f"layers.{next(numbers)}" for _ in range(layers)] for layers in counts]
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", "lm_head"]
    return parts


def layers_in(part: Sequence[str]) -> list[int]:
    """Numbers of the layers that a model part names."""
    matches = (re.fullmatch(r"layers\.(\d{1,6})", name, re.ASCII) for name in part)
    return [int(match[1]) for match in matches if match]


def num_parts(
    num_layers: int,
    pp: int,
    schedule: str,
    per_part: int | None,
    first: int,
    last: int,
) -> int:
    """Return the number of model parts torchtitan makes where they are not listed."""
    if per_part:
        return -(-(num_layers + first + last) // per_part)
    return pp if schedule in SINGLE else 2 * pp


def default_counts(num_layers: int, parts: int, first: int, last: int) -> list[int] | None:
    """Layers of every part where they are not listed; None where torchtitan refuses them.

    The embedding weighs as much as ``first`` layers, the head as ``last``.
    """
    if not 1 <= parts <= MAX_PARTS:
        return None
    base, extra = divmod(num_layers + first + last, parts)
    if parts == 1:
        return [num_layers]
    if base == 0 or max(first, last) > base:
        return None
    weights = [first, *([0] * (parts - 2)), last]
    wanted = [base + (i < extra) - weight for i, weight in enumerate(weights)]
    if sum(wanted) != num_layers or min(wanted) < 0:
        return None
    return wanted


def _pipeline_lines(_: Context, strategy: Strategy) -> Iterator[KeyValue]:
    why = "the plan's time holds without them; refused with pipelining and most expert parallelism"
    is_free = strategy.pp == 1 and strategy.ep == 1
    yield KeyValue(key=option.CUDA_GRAPHS, value=True, why=why, is_assumed=is_free)
    if strategy.pp > 1:
        layers = ", ".join(map(str, strategy.layers_per_stage))
        is_interleaved = strategy.schedule == "1f1b" and strategy.vpp > 1
        schedule = SCHEDULE_NAMES["interleaved" if is_interleaved else strategy.schedule]
        values = {
            option.SCHEDULE: (schedule, f"schedule {strategy.schedule}"),
            option.MICRO_BATCH: (strategy.micro_batch, "sequences per micro-batch"),
            option.PARTS: (parts_of(strategy), f"layers per stage: {layers}"),
        }
        yield from told(values)


def of_pipeline(settings: Settings) -> Decided:
    """Yield the decisions of settings on schedule, chunks and layers."""
    pp = option.degree(settings, "pp")
    num_layers = config_of(settings).model.get("num_layers", 0)
    if pp == 1 and num_layers:
        yield "layers_per_stage", "config", (num_layers,)
    schedule = schedule_named(word(settings, option.SCHEDULE))
    if pp < 2 or schedule in ("", "other"):
        return
    ours = "1f1b" if schedule == "interleaved" else schedule
    yield "schedule", option.SCHEDULE, ours
    # Layers of every model part, and the key that says so.
    parts = given(settings, option.PARTS)
    per_part = given(settings, option.LAYERS)
    counts, key = [len(layers_in(part)) for part in parts or ()], option.PARTS
    if parts is None and num_layers and pp <= MAX_PARTS and (per_part or 1) > 0:
        first = whole(settings, option.FIRST_LESS, 0)
        last = whole(settings, option.LAST_LESS, 0)
        count = num_parts(num_layers, pp, schedule, per_part, first, last)
        counts, key = default_counts(num_layers, count, first, last) or [], option.LAYERS
    if not counts or len(counts) % pp:
        return
    if len(counts) > pp:
        yield "vpp", key, len(counts) // pp
    # The second parts of a V-shaped schedule go back from the last rank to the first.
    if ours in V_SHAPED:
        counts = [*counts[:pp], *reversed(counts[pp:])]
    layers = tuple(sum(counts[rank::pp]) for rank in range(pp))
    yield "layers_per_stage", key, layers


def splits_backward(schedule: str) -> bool:
    """Return True if torch runs a schedule only without compiled blocks."""
    return schedule.startswith(("zb", "dualpipe"))


def _unlike_pipeline(context: Context, strategy: Strategy) -> Refused:
    schedule, number, pp = strategy.schedule, strategy.num_micro_batches, strategy.pp
    if pp == 1:
        chunks = f"schedule {schedule} with {strategy.vpp} chunks on one stage"
        return {chunks: schedule != "1f1b" or strategy.vpp > 1}
    stages, is_known = pp * strategy.vpp, schedule in SCHEDULE_NAMES
    least = 1
    if schedule == "dualpipe-v" or (schedule == "1f1b" and strategy.vpp == 1):
        least = stages
    rounds = max(1, number // pp)
    has_rounds = strategy.vpp > 1 and schedule in ("1f1b", "zb-interleaved")
    is_split = splits_backward(schedule) and context.traits.profile == "current"
    names = ", ".join(name for name in SCHEDULE_NAMES if name != "interleaved")
    tied = f"pp {pp}: torchtitan does not pipeline models with tied embeddings"
    eager = f"schedule {schedule}: torch runs it without compiled blocks (profile eager)"
    given = f"{number} micro-batches: torch runs"
    return {
        tied: context.model.tied_embeddings,
        f"schedule {schedule}: torchtitan has {names}": not is_known,
        eager: is_known and is_split,
        f"{given} {schedule} with {stages} at least": number < least,
        f"{given} interleaved ones in {rounds} equal rounds": has_rounds and number % rounds,
    }


PIPELINE = KeyMapping(
    names=("schedule", "vpp", "layers_per_stage"),
    keys=(
        option.SCHEDULE,
        option.SCHEDULE_CSV,
        option.MICRO_BATCH,
        option.PARTS,
        option.LAYERS,
        option.FIRST_LESS,
        option.LAST_LESS,
        option.CUDA_GRAPHS,
    ),
    to=_pipeline_lines,
    of=of_pipeline,
    cannot=_unlike_pipeline,
)
