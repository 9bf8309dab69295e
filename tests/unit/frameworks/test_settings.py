"""Traits with the optimizer and the recompute modules a user chooses."""

from dataclasses import replace

import pytest

from planner.errors import InputError
from planner.frameworks.registry import load_traits
from planner.frameworks.settings import (
    captured_fraction,
    runtime_settings,
    with_optimizer,
    with_recompute_modules,
)


def test_another_optimizer_changes_nothing_else() -> None:
    before = load_traits("deepspeed", "megatron")
    after = with_optimizer(before, "sgd-momentum")
    assert (before.optimizer.name, after.optimizer.name) == ("adam", "sgd-momentum")
    assert replace(after, optimizer=before.optimizer) == before


def test_the_optimizer_is_the_one_the_framework_runs() -> None:
    # Megatron runs SGD without its distributed optimizer, and Muon under stage 1 at most.
    traits = load_traits("megatron")
    assert with_optimizer(traits, "sgd").optimizer.zero_stages == (0,)
    assert with_optimizer(traits, "muon").optimizer.zero_stages == (0, 1)
    assert with_optimizer(load_traits("deepspeed"), "muon").optimizer.zero_stages == (0, 1, 2, 3)


def test_chosen_modules_replace_the_default_ones_and_nothing_else() -> None:
    before = load_traits("megatron")
    after = with_recompute_modules(before, ["moe_act", "layernorm"])
    assert {module.name for module in after.recompute.chosen} == {"layernorm", "moe_act"}
    assert after.recompute.modules == before.recompute.modules
    assert replace(after, recompute=before.recompute) == before
    assert before.recompute.selected == ("core_attn",)
    assert with_recompute_modules(before, []).recompute.chosen == ()


def test_every_unknown_module_is_named_with_those_that_exist() -> None:
    with pytest.raises(InputError) as caught:
        with_recompute_modules(load_traits("megatron"), ["mlp", "attn", "norms"])
    (problem,) = caught.value.problems
    assert (problem.where, problem.key) == ("command line", "--recompute-modules")
    refused, allowed = problem.message.split(";")
    assert "'attn', 'norms'" in refused
    assert "'mlp'" not in refused
    names = ("core_attn", "layernorm", "mlp", "moe", "moe_act", "mla_up_proj")
    assert all(name in allowed for name in names)
    with pytest.raises(InputError, match="of torchtitan"):
        with_recompute_modules(load_traits("torchtitan"), ["moe_act"])


@pytest.mark.parametrize(
    ("scopes", "share"),
    [
        ((), 0.0),
        (("attn", "moe_router", "moe_preprocess"), 0.3),
        (("mlp",), 0.0),
        (("attn", "full_iteration"), 1.0),
    ],
)
def test_graphs_replay_what_they_capture(scopes: tuple[str, ...], share: float) -> None:
    assert captured_fraction(scopes) == pytest.approx(share)


def test_a_whole_iteration_in_one_graph_fuses_experts() -> None:
    given = {"dispatcher": "hybridep", "expert_overlap": None, "tp_overlap": None}
    whole = dict(runtime_settings(graphs=("full_iteration",), **given))  # type: ignore[arg-type]
    part = dict(runtime_settings(graphs=("attn",), **given))  # type: ignore[arg-type]
    assert (whole["kernels.cuda_graph_fraction"], part["kernels.cuda_graph_fraction"]) == (1, 0.2)
    assert whole["kernels.dispatcher"] == "hybridep"


def test_settings_are_laid_over_the_profile() -> None:
    nothing = runtime_settings(graphs=(), dispatcher="", expert_overlap=None, tp_overlap=None)
    assert nothing == ()
    settings = runtime_settings(
        graphs=("attn",), dispatcher="alltoall", expert_overlap=True, tp_overlap=False
    )
    assert dict(settings) == {
        "kernels.cuda_graph_fraction": 0.2,
        "kernels.dispatcher": "alltoall",
        "overlap.expert_all_to_all_overlap": "batches",
        "overlap.tensor_parallel_overlap": "none",
    }
    traits = load_traits("megatron", "bridge", settings)
    assert traits.kernels.dispatcher == "alltoall"
    assert traits.overlap.tensor_parallel_overlap == "none"
