"""Plans written: every case of writing/ is a plan and what a file, new or a user's, says of it.

A case changes a ``plan`` (strategy_of of contexts.py) and its ``context`` (keywords of context_of,
parts of traits, ``settings``, ``optimizer``, ``train``), both beside what is ``_shared``. A plan is
new or put ``into`` a text at a ``path``; ``each A B`` are rows of these fields. Of what is written
these are true, if they are given:

- ``after``: the whole text; ``json``: values of it by their paths, None for none; ``content``: all
- ``lines``, ``has``, ``lacks``: lines and texts that it has, texts that it lacks
- ``reads``: decisions, and ``traits``, that the format reads from it
- ``files``: names of all files with a part of each; ``words``: some in a row of the command
- ``environment``, ``variables``: of the launch, with a part of what is said of each; ``left_open``:
  keys that are left to the user; ``why``: reasons of keys

and put into what is written, the plan changes nothing.
``refused`` are parts of what is said of a plan that cannot be written.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from contexts import context_of, strategy_of, with_traits

from planner.cost.context import Context
from planner.errors import ExpressError
from planner.formats.format import Emitted, SourceText
from planner.formats.registry import format_names, load_format
from planner.frameworks.registry import load_traits
from planner.frameworks.settings import with_optimizer, with_training
from planner.spec.strategy import Strategy
from planner.spec.training import TARGETS, Training

Case = Mapping[str, Any]


def cases() -> Iterator[Any]:
    for path in sorted(Path(__file__).with_name("writing").glob("*.yaml")):
        table = yaml.safe_load(path.read_text(encoding="utf-8"))
        shared = {"format": path.stem, "context": {}, "plan": {}} | table.pop("_shared", {})
        for claim, case in table.items():
            rows: list[Case] = []
            for name in [name for name in case if name.startswith("each ")]:
                fields = name.split()[1:]
                rows += [dict(zip(fields, row, strict=True)) for row in case.pop(name)]
            for number, row in enumerate(rows or [{}]):
                given = shared | case | row
                for part in ("context", "plan"):
                    parts = (each.get(part, {}) for each in (shared, case, row))
                    given[part] = {name: value for each in parts for name, value in each.items()}
                yield pytest.param(given, id=f"{path.stem}: {claim} {number or ''}".strip())


def context_from(given: Mapping[str, Any]) -> Context:
    given = dict(given)
    names = ("support", "overlap", "kernels", "states", "optimizer_traits")
    parts = {name: given.pop(name) for name in names if name in given}
    settings = tuple(map(tuple, given.pop("settings", ())))
    optimizer, train = given.pop("optimizer", ""), given.pop("train", None)
    context = context_of(**given)
    if settings:
        traits = load_traits(context.traits.name, given.get("profile", "current"), settings)
        context = replace(context, traits=traits)
    if optimizer:
        context = replace(context, traits=with_optimizer(context.traits, optimizer))
    if train:
        training = Training(mode=train, rank=8, targets=TARGETS)
        context = replace(context, traits=with_training(context.traits, training))
    return with_traits(context, **parts)


def context_and_plan(case: Case) -> tuple[Context, Strategy]:
    context = context_from(case["context"])
    layers = {name: v for name, v in case["plan"].items() if name.endswith("_per_stage")}
    layers.setdefault("layers_per_stage", [context.model.num_blocks])
    made = {name: tuple(value) for name, value in layers.items()}
    return context, strategy_of(**case["plan"] | made)


def value_at(content: Any, path: str) -> Any:
    for key in path.split("."):
        content = content.get(key) if isinstance(content, dict) else None
    return content


def assert_launch(emitted: Emitted, case: Case) -> None:
    reasons = [each.why for each in emitted.decided]
    assert all(reasons)
    assert set(case.get("why", [])) <= {*reasons}
    files, variables = {file.name: file.text for file in emitted.files}, emitted.variables
    assert list(case.get("files", files)) == list(files)
    assert all(part in files[name] for name, part in case.get("files", {}).items())
    assert case.get("environment", emitted.environment) == emitted.environment
    assert all(part in variables[name] for name, part in case.get("variables", {}).items())
    assert " ".join(case.get("words", [])) in " ".join([*emitted.words, ""])
    assert set(case.get("left_open", [])) <= {*emitted.left_open.values()}
    keys = [each.key.rpartition(".")[2] for each in emitted.decided if "content" in case]
    assert all(key in emitted.files[0].text for key in keys)


def assert_text(text: str, case: Case) -> None:
    assert text == case.get("after", text)
    if "json" in case or "content" in case:
        content = json.loads(text)
        assert content == case.get("content", content)
        wanted = case.get("json", {})
        assert {path: value_at(content, path) for path in wanted} == wanted
    assert set(case.get("lines", [])) <= set(text.splitlines())
    assert all(part in text for part in case.get("has", [])), text
    assert not [part for part in case.get("lacks", []) if part in text]


@pytest.mark.parametrize("case", [*cases()])
def test_a_plan_is_written_as(case: Case) -> None:
    form, path = load_format(case["format"]), case.get("path", "run.sh")
    context, plan = context_and_plan(case)

    def put_into(text: str) -> str:
        return form.written_into(SourceText(path=path, text=text), context, plan).text

    if "refused" in case:
        with pytest.raises(ExpressError) as error:
            put_into(case["into"]) if "into" in case else form.emitted(context, plan)
        reasons = case["refused"]
        for reason in [reasons] if isinstance(reasons, str) else reasons:
            assert re.search(reason, str(error.value)), error.value
        return
    if "into" in case:
        text = put_into(case["into"])
    else:
        emitted = form.emitted(context, plan)
        text = emitted.files[0].text
        assert_launch(emitted, case)
    assert_text(text, case)
    assert put_into(text) == text
    reading = form.read(SourceText(path=path, text=text))
    values = {name: each.value for name, each in reading.decisions.items()}
    decisions = {n: [*v] if isinstance(v, tuple) else v for n, v in values.items()}
    wanted = case.get("reads", {})
    assert {name: decisions.get(name) for name in wanted} == wanted
    traits = [list(each) for each in reading.traits]
    assert traits == case.get("traits", traits)


@pytest.mark.parametrize("name", format_names())
def test_a_format_narrows_each_framework_it_carries_to_a_part_of_it(name: str) -> None:
    for framework in (load_format(name).framework, *load_format(name).support):
        context = context_of(model="nemotron-h-8b", framework=framework)
        whole = asdict(context.traits.support)
        narrowed = asdict(load_format(name).narrowed(context).traits.support)
        changed = [each for each in whole if narrowed[each] != whole[each]]
        assert all(set(narrowed[each] or ()) < set(whole[each]) for each in changed)
        # Bridge takes no virtual stages of layers of one part.
        assert name != "bridge" or "vpp" in {*whole["features"]} - {*narrowed["features"]}
