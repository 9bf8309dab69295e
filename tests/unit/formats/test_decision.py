"""The engine of formats, on a table of two rows."""

from planner.documents.file import REMOVED
from planner.formats.decision import Decided, KeyMapping, KeyValue, changes, decided_in
from planner.formats.format import Located
from planner.formats.settings import Settings


def _degree(settings: Settings) -> Decided:
    given = settings.get("tp") or settings.get("tensor")
    if given is not None and given.value > 1:
        yield "tp", given.key, given.value


def _offload(settings: Settings) -> Decided:
    if "offload.device" in settings:
        yield "offload", "offload.device", settings["offload.device"].value


TABLE = (
    KeyMapping(names=("tp",), keys=("tp", "tensor"), to=lambda _c, _s: (), of=_degree),
    KeyMapping(
        names=("offload",),
        keys=("offload.device", "offload.ratio"),
        to=lambda _c, _s: (),
        of=_offload,
        off={"offload.device": "none"},
    ),
)


def given(**values: object) -> dict[str, Located]:
    return {k.replace("_", "."): Located(value=v, key=k) for k, v in values.items()}


def test_what_is_said_by_another_key_is_left_alone() -> None:
    assert changes(TABLE, given(tensor=4), [KeyValue(key="tp", value=4)]) == {}


def test_what_is_said_by_a_default_is_left_alone() -> None:
    assert changes(TABLE, {}, [KeyValue(key="tp", value=1)]) == {}


def test_a_change_takes_other_keys_of_the_decision_out() -> None:
    wanted = changes(TABLE, given(tensor=4), [KeyValue(key="tp", value=8)])
    assert wanted == {"tp": 8, "tensor": REMOVED}


def test_what_a_plan_does_not_say_goes_or_is_switched_off() -> None:
    found = changes(TABLE, given(offload_device="cpu", offload_ratio=0.5), [])
    assert found == {"offload.device": "none", "offload.ratio": REMOVED}


def test_what_is_assumed_is_not_written_into_a_file() -> None:
    line = KeyValue(key="offload.ratio", value=0.5, is_assumed=True)
    assert changes(TABLE, {}, [KeyValue(key="offload.device", value="cpu"), line]) == {
        "offload.device": "cpu"
    }


def test_decisions_are_those_of_all_rows() -> None:
    found = decided_in(TABLE, given(tp=2, offload_device="cpu"))
    assert {name: value.value for name, value in found.items()} == {"tp": 2, "offload": "cpu"}
