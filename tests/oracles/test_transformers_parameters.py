"""Parameters of whole models against transformers' own classes, to the last one.

Every model of the catalog for which transformers has the architecture is built from the sizes
in its file, on torch's meta device: nothing is downloaded and nothing is allocated.
"""

from dataclasses import replace
from typing import Any

import pytest
from hf_types import CLASSES, COMPARED, WITHOUT_CLASS, build

from planner.catalog import list_models
from planner.catalog.models import load_model
from planner.layers.parameters import count_parameters

BALANCING_OFFSET = "e_score_correction_bias"
"""A buffer of a router, updated outside the optimizer; model files count it as a router bias."""
WITHOUT_HEAD = ("step3p7", "minimax_m3")
"""Transformers' class that is built is the text model, without its head."""
ALWAYS_TIED = "t5"
"""Transformers 5 ties this architecture's head whatever the model; T5 1.1 has one of its own."""


def count(built: Any) -> int:
    """Parameters, tied ones once, and the balancing offsets of routers."""
    offsets = [buffer for name, buffer in built.named_buffers() if BALANCING_OFFSET in name]
    return sum(tensor.numel() for tensor in [*built.parameters(), *offsets])


@pytest.mark.parametrize("name", COMPARED)
def test_count_equals_what_transformers_builds(name: str) -> None:
    model = load_model(name)
    if COMPARED[name] == ALWAYS_TIED:
        model = replace(model, tied_embeddings=True)
    head = model.vocab_size * model.hidden_size * (COMPARED[name] in WITHOUT_HEAD)
    zero = 0  # experts that compute nothing, to which transformers gives an up projection
    if model.moe:
        zero = model.moe.num_zero_experts * 2 * model.moe.expert_ffn_size * model.hidden_size
    built = count(build(name)) - zero * model.num_layers
    assert count_parameters(model) == head + built


def test_every_architecture_is_compared() -> None:
    assert set(COMPARED.values()) == set(CLASSES["types"])
    assert set(WITHOUT_CLASS) <= set(list_models())
