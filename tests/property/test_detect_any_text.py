"""A damaged sample of what tools print becomes a cluster that loads, or problems."""

import tempfile
from pathlib import Path

from depth import of_all
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.catalog.clusters import load_cluster
from planner.catalog.detect import cluster_text, merge
from planner.catalog.observe import clean, parse
from planner.errors import InputError

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
