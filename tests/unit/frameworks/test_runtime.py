"""What recipes say of their runtime, as settings of traits."""

import pytest

from planner.frameworks.registry import load_traits
from planner.frameworks.settings import captured_fraction, runtime_settings, with_settings


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


def test_what_is_not_stated_is_left_to_the_profile() -> None:
    assert runtime_settings(graphs=(), dispatcher="", expert_overlap=None) == ()


def test_a_whole_iteration_in_one_graph_fuses_experts() -> None:
    given = {"dispatcher": "hybridep", "expert_overlap": None}
    whole = dict(runtime_settings(graphs=("full_iteration",), **given))  # type: ignore[arg-type]
    part = dict(runtime_settings(graphs=("attn",), **given))  # type: ignore[arg-type]
    assert whole["kernels.fused_experts"] is True
    assert whole["kernels.stashes_experts"] is True
    assert not {"kernels.fused_experts", "kernels.stashes_experts"} & set(part)
    assert whole["kernels.dispatch_permutes"] is True


def test_attention_and_head_are_in_8_bits_where_a_recipe_says_so() -> None:
    given = runtime_settings(
        graphs=(), dispatcher="", expert_overlap=None, in_8_bit=("attention", "head")
    )
    assert dict(given) == {"kernels.attention_in_8_bit": True, "kernels.head_in_8_bit": True}


def test_settings_are_laid_over_the_profile() -> None:
    settings = runtime_settings(
        graphs=("attn",), dispatcher="alltoall", expert_overlap=True, tp_overlap=False
    )
    assert dict(settings) == {
        "kernels.cuda_graph_fraction": 0.2,
        "kernels.deduplicated_dispatch": False,
        "kernels.dispatch_permutes": False,
        "overlap.expert_all_to_all_overlap": "batches",
        "overlap.tensor_parallel_overlap": "none",
    }
    profile = load_traits("megatron", "bridge")
    traits = with_settings(profile, settings)
    assert traits.kernels.deduplicated_dispatch is False
    assert traits.overlap.tensor_parallel_overlap == "none"
    given = load_traits("megatron", "bridge", settings)
    assert (traits.kernels, traits.overlap) == (given.kernels, given.overlap)
