"""What no file of a format can say is refused by name, and the format that can say it found."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from planner.cost.context import Context
from planner.errors import ExpressError
from planner.expr import names_in, parsed
from planner.formats.decision import refusals
from planner.formats.registry import format_for, load_format
from planner.formats.settings import FUNCTIONS
from planner.frameworks.settings import with_training
from planner.spec.training import TARGETS, Training

Contexts = Callable[..., Context]
LORA = Training(mode="lora", rank=8, targets=TARGETS)


@pytest.mark.parametrize(
    ("name", "profile", "is_refused"),
    [
        ("megatron", "nanotron", True),
        ("megatron", "llm.c", True),
        ("megatron", "classic", False),
        ("bridge", "classic", True),
        ("bridge", "zero-bubble", True),
        ("bridge", "bridge", False),
    ],
)
def test_profiles_of_other_programs_are_refused(
    context_of: Contexts, name: str, profile: str, is_refused: bool
) -> None:
    found = load_format(name).problems(context_of(profile=profile))
    assert any(profile in text for text in found) == is_refused


@pytest.mark.parametrize("name", ["megatron", "deepspeed", "torchtitan"])
def test_adapters_are_refused_with_what_is_allowed(
    name: str, context_of: Contexts, strategy_of: Callable[..., object]
) -> None:
    context, kind = context_of(framework=name), load_format(name)
    plain = list(kind.refused(context))
    frozen = replace(context, traits=replace(context.traits, training=LORA))
    added = [said for said in kind.refused(frozen) if said not in plain]
    assert added == [f"--train lora: {name} files say full"]
    with pytest.raises(ExpressError, match="--train lora"):
        kind.emitted(frozen, strategy_of())


def test_plans_of_adapters_are_written_for_the_bridge_and_others_for_megatron_lm(
    context_of: Contexts,
) -> None:
    context = context_of(framework="megatron", profile="bridge")
    assert format_for(context).name == "megatron"
    frozen = replace(context, traits=with_training(context.traits, LORA))
    assert format_for(frozen).name == "bridge"
    assert format_for(context_of(framework="deepspeed", profile="peft-2023")).name == "deepspeed"


@pytest.mark.parametrize("name", ["accelerate", "bridge", "deepspeed", "megatron", "torchtitan"])
def test_reasons_name_what_plans_have(
    name: str, context_of: Contexts, strategy_of: Callable[..., object]
) -> None:
    for part in refusals(f"planner.formats.{name}").values():
        conditions, names = part.args
        trees = map(parsed, (*conditions.values(), *names.values()))
        asked = {each: each for tree in trees for each in names_in(tree) if each not in FUNCTIONS}
        texts = dict.fromkeys(conditions, "True")
        own = dict.fromkeys(("chunks", "modules", "no_block"), ())
        said = list(part.func(asked | texts, names, context_of(), strategy_of(), **own))
        assert len(said) >= len(texts)
