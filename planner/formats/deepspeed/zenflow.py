"""How ZenFlow stands in a DeepSpeed file: the section ``zero_optimization.zenflow``."""

from collections.abc import Iterator, Mapping
from typing import Any

from planner.cost.context import Context
from planner.formats.decision import Decision, Line
from planner.formats.deepspeed import keys
from planner.formats.format import Value, World
from planner.formats.rules import Rules, Said
from planner.formats.settings import Settings, as_number, as_whole, decided, given
from planner.spec.strategy import Strategy
from planner.spec.zenflow import ZenFlow, zenflow_of

RATIO, UPDATE, OVERLAP, OFFLOAD = "topk_ratio", "update_interval", "overlap_step", "offload"
STRATEGY, SELECT, CORES = "select_strategy", "select_interval", "pt_reserved_cores_perc"
IN_STEPS, IN_EPOCHS = "step", "epoch"
STRATEGIES = (keys.AUTO, IN_STEPS, IN_EPOCHS)
_ENGINE = "deepspeed/runtime/zenflow/engine.py"
_OPTIMIZER = "deepspeed/runtime/zenflow/zenflow_stage_1_and_2.py"
rule = Rules()


def section_of(settings: Settings) -> Mapping[str, Any] | None:
    """The section as it stands; None where ZenFlow is off."""
    found = given(settings, keys.ZENFLOW)
    return found if isinstance(found, Mapping) else None


def written(zenflow: ZenFlow) -> dict[str, Any]:
    """The section of a plan."""
    interval = zenflow.select_interval
    section = {
        RATIO: zenflow.topk_ratio,
        STRATEGY: IN_STEPS if interval else keys.AUTO,
        SELECT: interval or keys.AUTO,
        UPDATE: zenflow.update_interval,
        OVERLAP: zenflow.overlap_step,
    }
    further = {OFFLOAD: zenflow.offload, CORES: zenflow.pt_reserved_cores_perc}
    usual = {OFFLOAD: ZenFlow.offload, CORES: ZenFlow.pt_reserved_cores_perc}
    return section | {key: value for key, value in further.items() if value != usual[key]}


def _to_zenflow(context: Context, _: Strategy) -> Iterator[Line]:
    zenflow = context.traits.zenflow
    if not zenflow.is_plain:
        why = f"changes training: {zenflow.changes}"
        yield Line(key=keys.ZENFLOW, value=written(zenflow), why=why)


def _of_zenflow(settings: Settings) -> Iterator[tuple[str, Value]]:
    """What DeepSpeed would run; nothing where a value is refused, of which findings speak.

    An interval that follows the gradients ("auto") is taken as the usual one.
    """
    section = section_of(settings)
    if section is None:
        return
    values: dict[str, bool | float | None] = {
        RATIO: as_number(section.get(RATIO)),
        CORES: as_number(section.get(CORES)),
        UPDATE: as_whole(section.get(UPDATE)),
        SELECT: as_whole(section.get(SELECT)) if section.get(STRATEGY) == IN_STEPS else None,
        OVERLAP: section.get(OVERLAP) is True,
        OFFLOAD: section.get(OFFLOAD) is True,
    }
    try:
        found = zenflow_of({key: value for key, value in values.items() if value is not None})
    except ValueError:
        return
    yield "zenflow", decided(settings, keys.ZENFLOW, found.text)


ZENFLOW = Decision(names=("zenflow",), keys=(keys.ZENFLOW,), to=_to_zenflow, of=_of_zenflow)


@rule(f"{_OPTIMIZER} raises at start", enforced=False)
def zenflow_needs_offload(settings: Settings, _: World) -> Said:
    """ZenFlow needs the optimizer's states on the host."""
    where = keys.device(settings, "offload_optimizer")
    if section_of(settings) is not None and where != "cpu":
        yield keys.ZENFLOW, f"needs offload_optimizer.device cpu; given {where}"


@rule(f"{_ENGINE} raises at start", enforced=False)
def zenflow_intervals_agree(settings: Settings, _: World) -> Said:
    """zenflow.select_interval is a number where select_strategy is one, and >= update_interval."""
    section = section_of(settings)
    if section is None:
        return
    strategy, interval = section.get(STRATEGY, keys.AUTO), section.get(SELECT, keys.AUTO)
    number, update = as_whole(interval), as_whole(section.get(UPDATE))
    if strategy not in STRATEGIES:
        key, message = STRATEGY, f"allowed are {', '.join(STRATEGIES)}; given {str(strategy)[:40]}"
    elif strategy == keys.AUTO and number is not None:
        key, message = SELECT, f"beside select_strategy auto allowed is auto; given {number}"
    elif strategy != keys.AUTO and number is None:
        key, message = SELECT, f"select_strategy {strategy} needs a number; given {interval}"
    elif strategy == IN_STEPS and number and update and number < update:
        key, message = SELECT, f"must be at least update_interval {update}; given {number}"
    else:
        return
    yield f"{keys.ZENFLOW}.{key}", message


@rule(f"{_OPTIMIZER} asserts it", enforced=False)
def zenflow_offload_needs_overlap(settings: Settings, _: World) -> Said:
    """zenflow.offload needs overlap_comm, which is on by itself under stage 3 only."""
    section, overlaps = section_of(settings), given(settings, f"{keys.ZERO}.overlap_comm")
    is_off = overlaps is False or (overlaps is None and keys.stage(settings) != 3)
    if section is not None and section.get(OFFLOAD) is True and is_off:
        yield f"{keys.ZENFLOW}.{OFFLOAD}", "needs overlap_comm true"


@rule(f"{_ENGINE} configure_zenflow overwrites it", enforced=False)
def zenflow_takes_accumulation(settings: Settings, _: World) -> Said:
    """gradient_accumulation_steps is 1 under zenflow."""
    steps = keys.size(settings, keys.STEPS)
    if section_of(settings) is not None and steps is not None and steps > 1:
        message = "zenflow puts its update_interval there, and steps at every micro-batch"
        yield keys.STEPS, f"{message}; given {steps}, allowed is 1"
