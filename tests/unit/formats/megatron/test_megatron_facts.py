"""Facts of software are read from files and written to them."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from planner.catalog.models import load_model
from planner.cost.context import Context
from planner.errors import InputError
from planner.formats.format import SourceText
from planner.formats.megatron.states import FUSED, LOSS, PADS, SORTING
from planner.formats.registry import load_format
from planner.frameworks.registry import load_traits
from planner.frameworks.settings import capacity_settings, runtime_settings
from planner.spec.strategy import Strategy
from planner.spec.traits import Setting

runtime = partial(runtime_settings, graphs=(), dispatcher=None)
FLEX, BACKEND = "--moe-token-dispatcher-type flex", "--moe-flex-dispatcher-backend"
STATED: list[tuple[list[str], tuple[Setting, ...]]] = [
    (["--moe-expert-capacity-factor 1.25", PADS], capacity_settings(1.25, pads=True)),
    (["--moe-expert-capacity-factor 1"], capacity_settings(1.0, pads=False)),
    (["--tensor-parallel-num-weight-shards 4"], (("states.weight_shards", 4.0),)),
    (["--expert-tensor-parallel-num-weight-shards 2"], (("states.expert_weight_shards", 2.0),)),
    (["--moe-token-dispatcher-type alltoall"], runtime(dispatcher="alltoall")),
    ([FLEX, f"{BACKEND} deepep"], runtime(dispatcher="deepep")),
    ([FLEX, f"{BACKEND} hybridep"], runtime(dispatcher="hybridep")),
    ([FLEX, f"{BACKEND} hybridep", FUSED], runtime(dispatcher="hybridep-fused")),
]


def spelled(name: str, line: str) -> str:
    """An option as one of the formats has it."""
    option, _, value = line.partition(" ")
    return line if name == "megatron" else f"model.{option[2:].replace('-', '_')}={value or 'true'}"


FIRST = {"megatron": f"--num-experts 8\n{SORTING}\n{LOSS}", "bridge": "model.num_moe_experts=8"}


def test_nothing_is_fused_that_a_file_does_not_ask_for() -> None:
    found = load_format("megatron").read(SourceText(path="file", text="--num-experts 8")).traits
    assert found == (("software.loss", "vocab-parallel"), *runtime(dispatcher="alltoall-unfused"))


@pytest.mark.parametrize("name", FIRST)
@pytest.mark.parametrize(
    ("lines", "facts"),
    [
        *STATED,
        (["--moe-expert-capacity-factor -1"], ()),
        (["--cuda-graph-impl local", "--cuda-graph-scope attn"], runtime(graphs=("attn",))),
        (["--cuda-graph-impl full_iteration"], runtime(graphs=("full_iteration",))),
        (["--cuda-graph-impl none", "--cuda-graph-scope attn"], ()),
    ],
)
def test_facts_are_read(name: str, lines: list[str], facts: tuple[Setting, ...]) -> None:
    text = "\n".join([FIRST[name], *(spelled(name, line) for line in lines)])
    assert load_format(name).read(SourceText(path="file", text=text)).traits == facts


# Bridge's recipes say the dispatcher.
@pytest.mark.parametrize(
    ("name", "lines", "facts"),
    [("megatron", *row) for row in STATED] + [("bridge", *row) for row in STATED[:4]],
)
def test_facts_are_written(
    name: str,
    lines: list[str],
    facts: tuple[Setting, ...],
    context_of: Callable[..., Context],
    strategy_of: Callable[..., Strategy],
) -> None:
    traits = load_traits("megatron", "current", facts)
    context = replace(context_of(), model=load_model("mixtral-8x7b"), traits=traits)
    plan = strategy_of(dp=8, ep=4, num_micro_batches=2, layers_per_stage=(32,))
    plain = replace(context, traits=load_traits("megatron"))
    written, without = (
        load_format(name).emit(each, plan).files[0].text.splitlines() for each in (context, plain)
    )
    assert {spelled(name, line) for line in lines} <= {*written}
    assert (written == without) is ("alltoall" in lines[0])


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
