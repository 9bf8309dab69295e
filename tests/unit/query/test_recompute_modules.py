"""Which recompute modules have nothing to save on a model."""

import pytest
from contexts import small_model

from planner.catalog.models import load_model
from planner.frameworks.registry import FRAMEWORKS, load_traits
from planner.frameworks.settings import with_recompute_modules
from planner.query.software import idle_modules
from planner.spec.model import ModelSpec

EVERY = ("core_attn", "layernorm", "mlp", "moe", "moe_act", "shared_experts", "mla_up_proj")


def idle(model: ModelSpec, *names: str) -> tuple[str, ...]:
    return tuple(idle_modules(model, with_recompute_modules(load_traits("megatron"), names)))


def test_a_dense_model_without_latent_attention_has_no_use_for_five_modules() -> None:
    # Transformer Engine fuses plain norms into the projections that follow them, so that
    # layernorm rebuilds nothing either; flash attention keeps log_sum_exp and its output.
    used = set(EVERY) - set(idle(small_model(), *EVERY))
    assert used == {"core_attn", "mlp"}


def test_a_mixture_with_latent_attention_and_dense_layers_uses_every_module() -> None:
    assert idle(load_model("deepseek-v3"), *EVERY) == ()


def test_a_mixture_without_shared_experts_or_dense_layers_is_told_so() -> None:
    found = idle(load_model("mixtral-8x7b"), *EVERY)
    assert set(found) == {"mlp", "shared_experts", "mla_up_proj"}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_what_is_recomputed_by_default_saves_something(framework: str) -> None:
    assert not list(idle_modules(load_model("llama3-8b"), load_traits(framework)))
