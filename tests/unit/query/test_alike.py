"""An option means the same, or is refused in the same words, wherever a question is asked."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from planner.cli.app import app
from planner.errors import InputError
from planner.query.options import FIXED, OPTIONS
from planner.query.query import Query
from planner.query.resolve import Resolved, resolve
from planner.sweep.sweep import read_sweep

COMMANDS = ("plan", "why", "size", "sensitivity", "explain", "job", "emit", "export")
MODEL, CLUSTER = "llama3-8b", "1xdgx-h100"
EXAMPLES = Path(__file__).parents[2] / "examples"
SAID: dict[str, list[Any]] = yaml.safe_load((EXAMPLES / "options.yaml").read_text())
"""A value of every option that is taken, None where it asks for another, and one that is not."""


def said(name: str, *, is_sound: bool) -> Any:
    return SAID.get(name, ("1", "0"))[0 if is_sound else 1]


def parameters(command: str) -> dict[str, Any]:
    found: Any = get_command(app)
    return {each.name: each for each in found.get_command(None, command).params}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_reads_every_option_as_the_table_spells_it(command: str) -> None:
    own = parameters(command)
    for name, option in OPTIONS.items():
        assert option.flag in own[name].opts
        assert own[name].multiple is option.many
        assert own[name].hidden or own[name].help == option.help


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_has_one_meaning_from_every_side(name: str, tmp_path: Path) -> None:
    option, value = OPTIONS[name], said(name, is_sound=True)
    if value is None:
        pytest.skip("needs another option beside it")
    query = Query.of(MODEL, CLUSTER, **{name: value})
    found = resolve(query)
    assert isinstance(found, Resolved)
    if option.sweeps:
        given = option.read(value) if option.kind is bool else value
        axes = {"model": MODEL, "cluster": CLUSTER, option.flag.lstrip("-"): [given]}
        path = tmp_path / "sweep.yaml"
        path.write_text(json.dumps(axes))
        (cell,) = read_sweep(path).cells()
        again = resolve(cell.query)
        assert (again.contexts, again.narrowing) == (found.contexts, found.narrowing)
        assert (again.aim, again.notes) == (found.aim, found.notes)


@pytest.mark.parametrize("name", OPTIONS)
def test_what_is_wrong_is_said_of_the_option_whatever_else_is(name: str) -> None:
    given = {name: said(name, is_sound=False)}
    with pytest.raises(InputError) as caught:
        resolve(Query.of(MODEL, "1xdgx-h999", **given))
    found = {problem.key.partition(" ")[0]: problem.message for problem in caught.value.problems}
    flag = OPTIONS[name].flag
    assert found.keys() & ({flag, "--fix"} if name in FIXED else {flag})
    assert "dgx-h999" in str(caught.value)


def test_an_unknown_keyword_raises_with_the_nearest() -> None:
    with pytest.raises(TypeError, match="'global_bach'; did you mean global_batch"):
        Query.of(MODEL, CLUSTER, global_bach=64)
    with pytest.raises(TypeError, match="no option 'nonsense'"):
        Query.of(MODEL, CLUSTER).with_(nonsense=True)
