"""The capacity of experts is read from files and written to them."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from planner.catalog.models import load_model
from planner.cost.context import Context
from planner.errors import InputError
from planner.formats.format import SourceText
from planner.formats.registry import load_format
from planner.frameworks.registry import load_traits
from planner.frameworks.settings import capacity_settings
from planner.spec.strategy import Strategy

FILES = {
    "megatron": "--num-experts 8\n--moe-expert-capacity-factor {}\n",
    "bridge": "model.tensor_model_parallel_size=1\nmodel.moe_expert_capacity_factor={}\n",
}
PADDING = {
    "megatron": "--moe-pad-expert-input-to-capacity\n",
    "bridge": "model.moe_pad_expert_input_to_capacity=true\n",
}
WRITTEN = {
    "megatron": ("--moe-expert-capacity-factor 1.25", "--moe-pad-expert-input-to-capacity"),
    "bridge": (
        "model.moe_expert_capacity_factor=1.25",
        "model.moe_pad_expert_input_to_capacity=true",
    ),
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(("factor", "pads"), [("1.25", True), ("1", False), ("-1", False)])
def test_a_capacity_is_read(name: str, factor: str, pads: bool) -> None:
    text = FILES[name].format(factor) + PADDING[name] * pads
    found = load_format(name).read(SourceText(path="file", text=text)).traits
    settings = [each for each in found if "capacity" in each[0]]
    expected = capacity_settings(float(factor), pads=pads) if float(factor) > 0 else ()
    assert tuple(settings) == expected


@pytest.mark.parametrize("name", WRITTEN)
def test_a_capacity_is_written(
    name: str, context_of: Callable[..., Context], strategy_of: Callable[..., Strategy]
) -> None:
    context = replace(context_of(), model=load_model("mixtral-8x7b"))
    plan = strategy_of(dp=8, ep=8, num_micro_batches=2, layers_per_stage=(32,))

    def lines(*settings: tuple[str, float]) -> set[str]:
        given = replace(context, traits=load_traits("megatron", "current", settings))
        return set(load_format(name).emit(given, plan).files[0].text.splitlines())

    assert set(WRITTEN[name]) <= lines(*capacity_settings(1.25, pads=True))
    assert WRITTEN[name][1] not in lines(*capacity_settings(1.25, pads=False))
    assert not any("capacity" in line for line in lines())


@pytest.mark.parametrize(
    ("framework", "settings", "message"),
    [
        ("torchtitan", capacity_settings(1.25, pads=False), "gives experts no capacity"),
        ("megatron", (("kernels.pads_to_capacity", True),), "needs expert_capacity_factor"),
    ],
)
def test_a_capacity_is_refused_where_it_cannot_be(
    framework: str, settings: tuple[tuple[str, float], ...], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        load_traits(framework, "current", settings)
