"""Scripts in the forms people write them, run before and after a plan is put in.

In every environment the words that launchers get differ by the plan alone, and the format's own
reader takes them. A script whose first comment is ``by hand: WHY`` is not written.
"""

from pathlib import Path

import pytest
from contexts import context_of, strategy_of
from script_forms import BY_HAND, ENVIRONMENTS, KINDS, NOT_DECIDED, SCRIPTS, read, started

from planner.errors import ExpressError
from planner.formats.format import SourceText
from planner.formats.registry import load_format


@pytest.mark.parametrize("plan", [0, 1], ids=["words", "layout"])
@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_script_hands_on_the_plan_and_all_else_unchanged(
    path: Path, plan: int, tmp_path: Path
) -> None:
    text, name = path.read_bytes().decode(), path.parent.name
    kind, made = KINDS[name], load_format(name)
    context, strategy = context_of(**kind.context), strategy_of(**kind.plans[plan])
    before = [started(text, tmp_path, each) for each in ENVIRONMENTS]
    assert all(before)
    source = SourceText(path="train.sh", text=text)
    if BY_HAND in text:
        with pytest.raises(ExpressError, match=kind.refused):
            made.write_into(source, context, strategy)
        return
    written = made.write_into(source, context, strategy)
    emitted = made.emit(context, strategy).files[0]
    wanted = made.read(SourceText(path="emitted.args", text=emitted.text)).decisions
    for environment, own in zip(ENVIRONMENTS, before, strict=True):
        after = started(written, tmp_path, environment)
        for old, new in zip(own, after, strict=True):
            launcher, others, reading = read(name, new)
            assert (launcher, others) == read(name, old)[:2]
            if any(word.startswith("tools/") for word in launcher):
                assert new == old
                continue
            assert not [each for each in reading.findings if each.severity == "error"]
            found = {name: each.value for name, each in reading.decisions.items()}
            for decision in wanted.keys() - NOT_DECIDED - kind.unsaid:
                assert found.get(decision, 1) == wanted[decision].value, decision
