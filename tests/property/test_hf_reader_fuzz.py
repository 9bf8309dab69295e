"""Whatever a ``config.json`` holds: a model, or an InputError that names the file."""

import json
from pathlib import Path
from typing import Any

from depth import of_all
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.catalog.hf.family import families
from planner.catalog.models import load_model
from planner.errors import InputError
from planner.layers.parameters import count_parameters

WORDS = ["llama", "gelu", "full_attention", "sliding_attention", "gated-gelu", "", "\ud800", "é"]
NUMBERS = st.one_of(
    st.integers(-3, 70), st.sampled_from([96, 128, 4096, 10**9, 10**9 + 1, 2**63, 10**400])
)
SCALARS = st.one_of(
    st.none(), st.booleans(), NUMBERS, st.floats(), st.sampled_from(WORDS), st.text(max_size=3)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)


def keys_of(kind: str) -> list[str]:
    family = families()[kind]
    return sorted({*family.keys, *family.aliases, *family.only, "pruned_heads", "auto_map"})


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    kind = draw(st.sampled_from(sorted(families())))
    one_value = st.one_of(st.integers(1, 64), VALUES)
    keys = draw(st.dictionaries(st.sampled_from(keys_of(kind)), one_value, max_size=6))
    if kind == "gemma3":
        keys = {"text_config": draw(st.one_of(st.just(keys), VALUES))}
    return keys | {"model_type": draw(st.one_of(st.just(kind), st.just(kind), VALUES))}


@given(config=configs())
@settings(max_examples=of_all(400))
def test_any_value_in_any_key_is_a_model_or_a_clear_error(
    config: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    try:
        assert count_parameters(load_model(path)) > 0
        return
    except InputError as error:
        problems = error.problems
    assert {problem.where for problem in problems} == {str(path)}
    assert all(str(problem).encode("utf-8") for problem in problems)
