"""Megatron-Bridge's overrides: what is written is read back, and foreign ones stay."""

from hypothesis import given, settings
from hypothesis import strategies as st
from megatron_plans import CASES, draw, planned, understood

from planner.errors import ExpressError
from planner.formats.format import SourceText
from planner.formats.registry import load_format

BRIDGE = load_format("bridge")
QUICK = settings(max_examples=60)
PLANS = {"seed": st.integers(0, 10**6), "case": st.integers(0, len(CASES) - 1)}


def source(text: str) -> SourceText:
    return SourceText(path="file", text=text)


def emitted_text(seed: int, case: int) -> str | None:
    """None where the plan cannot be expressed, or only with the model's number of layers."""
    try:
        return BRIDGE.emit(*draw(seed, case)).files[0].text
    except ExpressError:
        return None


def assert_holds(text: str, seed: int, case: int) -> None:
    context, strategy = draw(seed, case)
    reading = BRIDGE.read(source(f"{text}\nmodel.num_layers={context.model.num_layers}\n"))
    assert not reading.findings
    wanted = planned(context, strategy)
    found = {name: value.value for name, value in reading.decisions.items()}
    found = understood(found, strategy)
    assert {name: found.get(name) for name in wanted} == wanted


@QUICK
@given(**PLANS)
def test_what_is_emitted_is_read_back(seed: int, case: int) -> None:
    text = emitted_text(seed, case)
    if text is not None:
        assert BRIDGE.recognise(source(text))
        assert_holds(text, seed, case)


@QUICK
@given(**PLANS, other=st.integers(0, 10**6))
def test_writing_keeps_foreign_overrides(seed: int, case: int, other: int) -> None:
    before = emitted_text(other, case)
    if before is None or emitted_text(seed, case) is None:
        return
    before += "# kept\nlogger.log_interval=7\n"
    after = BRIDGE.write_into(source(before), *draw(seed, case))
    assert "# kept\nlogger.log_interval=7\n" in after
    assert_holds(after, seed, case)
