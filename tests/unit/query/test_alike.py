"""An option means the same, or is refused in the same words, wherever a question is asked."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from planner.cli.app import app
from planner.errors import InputError
from planner.query.options import FIXED, OPTIONS
from planner.query.query import Query
from planner.query.resolve import Resolved, resolve
from planner.sweep.sweep import read_sweep

COMMANDS = ("plan", "why", "size", "sensitivity", "explain", "job", "emit", "export")
MODEL, CLUSTER = "llama3-8b", "1xdgx-h100"
SAID: dict[str, tuple[Any, Any]] = {
    "tuned": ("1", "maybe"),
    "like": ("llama3_8b_pretrain_8gpu_h100_bf16", "llama3_8b_pretrain_9gpu"),
    "framework": ("deepspeed", "deepspead"),
    "profile": ("bridge", "brige"),
    "settings": ("traits.overheads.step_overhead_s=1", "traits.overheads.step_overhead=1"),
    "global_batch": ("64", "64.5"),
    "global_batch_tokens": ("1M", "many"),
    "seq_len": ("4k", "4q"),
    "tokens": ("1T", "some"),
    "optimizer": ("sgd", "sdg"),
    "train": ("full", "dpo"),
    "recompute_modules": ("mlp", "mpl"),
    "precision": ("fp8", "fp7"),
    "host_memory": ("512GiB", "512"),
    "margin": ("12.5", "100"),
    "documents": ("packed:512", "packet:512"),
    "mtp_layers": ("0", "17"),
    "lora_rank": (None, "8"),
    "lora_targets": (None, "q,v"),
    "imbalance": (None, "30"),
    "placement": ("any", "tp-dp"),
    "schedule": ("1f1b", "1f1c"),
    "sequence_parallel": ("off", "of"),
    "offload": ("none", "disk"),
    "recompute": ("full", "fully"),
    "fix": ("tp=2", "tpp=2"),
    "limit": ("pp<=2", "pp"),
    "where": ("tp*cp <= 4", "tp*"),
    "allow": ("mixed-layers", "magic"),
    "forbid": ("offload", "ofload"),
    "time_limit": ("10", "soon"),
    "objective": ("headroom", "speed"),
    "pareto": ("time,gpus", "time"),
    "frontier": (True, "perhaps"),
    "deadline": (None, "30d"),
    "min_tokens_per_s": ("1M", "fast"),
    "budget": (None, "2M"),
    "zero_stage": ("1", "4"),
    "offload_percent": ("100", "101"),
}
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
