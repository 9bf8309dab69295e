"""Whatever a ``config.json`` or what tools print holds: a model or cluster, or problems."""

import json
import tempfile
from pathlib import Path
from typing import Any

from depth import of_all
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.catalog.clusters import load_cluster
from planner.catalog.detect import cluster_text, merge
from planner.catalog.hf.family import families
from planner.catalog.models import load_model
from planner.catalog.observe import clean, parse
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


SAMPLES = sorted((Path(__file__).parents[1] / "examples" / "hardware" / "positive").iterdir())


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    data = draw(st.sampled_from(SAMPLES)).read_bytes()
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.integers(0, 200)))
        middle = draw(st.sampled_from([b"", data[start:end] * 2, b"0", b"\xff", b"-9", b"\n"]))
        data = data[:start] + middle + data[end:]
    return data


@settings(max_examples=of_all(300))
@given(data=damaged())
def test_a_damaged_sample_is_refused_or_becomes_a_cluster_that_loads(data: bytes) -> None:
    try:
        machine = merge([parse(clean(data.decode(errors="replace"), "x"), "x")])
    except InputError:
        return
    with tempfile.TemporaryDirectory() as folder:
        cluster = Path(folder, "c.yaml")
        cluster.write_text(cluster_text(machine, "planner show hardware"), encoding="utf-8")
        assert load_cluster(cluster).num_accelerators == machine.num_nodes * machine.num_gpus
