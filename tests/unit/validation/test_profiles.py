"""Settings that records state about their run: CUDA graphs, dispatchers, overlap, chunks."""

from pathlib import Path
from typing import Any

import pytest

from planner.frameworks.runtime import captured_fraction
from planner.validation.mapping import to_run, virtual_stages
from planner.validation.profiles import (
    dispatcher_of,
    graph_scopes,
    overlaps_all_to_all,
    to_setup,
)
from planner.validation.records import Record, read_records

LINES = Path(__file__).parents[2] / "validation" / "published_runs.jsonl"
MIXTURE = "moezoo-qwen3-235b-h100-256-deepep"
INTERLEAVED = "torchtitan-llama3.1-405b-512h100-3d-interleaved1f1b"


@pytest.fixture(scope="module")
def records() -> dict[str, Record]:
    return {record.id: record for record in read_records(LINES)}


@pytest.fixture(scope="module")
def mixture(records: dict[str, Record]) -> Record:
    """A mixture's record that states nothing about its runtime."""
    changes = {"id": "qwen3-235b-h100-256", "runtime": {}, "notes": ""}
    return records[MIXTURE].model_copy(update=changes)


def graph_fraction(record: Record) -> float:
    return captured_fraction(graph_scopes(record))


def stating(record: Record, **runtime: Any) -> Record:
    return record.model_copy(update={"runtime": runtime})


def test_graphs_of_a_whole_iteration_replay_every_launch(mixture: Record) -> None:
    record = stating(mixture, cuda_graph="full_iteration", cuda_graph_scope=[])
    assert graph_fraction(record) == 1.0


def test_graphs_replay_what_their_scope_captures(mixture: Record) -> None:
    def captured(*scope: str) -> float:
        return graph_fraction(
            stating(mixture, cuda_graph="transformer_engine", cuda_graph_scope=list(scope))
        )

    assert captured("attn", "moe_router") == captured("attn") + captured("moe_router")
    assert captured("attn") > captured("moe_router") > 0.0
    assert captured("attn", "moe_router", "moe_preprocess") < 1.0
    assert captured("something_else") == 0.0
    assert captured() == 0.0


def test_without_graphs_nothing_is_replayed(mixture: Record) -> None:
    assert graph_fraction(mixture) == 0.0
    assert graph_fraction(stating(mixture, cuda_graph="none", cuda_graph_scope=[])) == 0.0


def test_graphs_as_stated_are_a_trait_with_a_note(mixture: Record) -> None:
    scope = ["attn", "moe_router", "moe_preprocess"]
    record = stating(mixture, cuda_graph="transformer_engine", cuda_graph_scope=scope)
    setup = to_setup(record)
    assert setup.traits.kernels.cuda_graph_fraction == graph_fraction(record)
    assert any(note.startswith("CUDA graphs replay") for note in setup.notes)
    plain = to_setup(mixture)
    assert plain.traits.kernels.cuda_graph_fraction == 0.0
    assert not any("CUDA graphs" in note for note in plain.notes)


@pytest.mark.parametrize(
    ("name", "runtime", "dispatcher"),
    [
        ("qwen3-256", {}, None),
        ("qwen3-256-deepep", {}, "deepep"),
        ("qwen3-256-hybridep+overlap", {}, "hybridep"),
        ("qwen3-256", {"moe_dispatcher": "hybridep"}, "hybridep"),
        ("qwen3-256-deepep", {"moe_dispatcher": "alltoall"}, "alltoall"),
    ],
)
def test_a_dispatcher_is_the_one_stated_or_else_the_one_in_the_name(
    mixture: Record, name: str, runtime: dict[str, str], dispatcher: str | None
) -> None:
    record = mixture.model_copy(update={"id": name, "runtime": runtime})
    assert dispatcher_of(record) == dispatcher


@pytest.mark.parametrize(("dispatcher", "deduplicates"), [("flex", True), ("alltoall", False)])
def test_a_stated_dispatcher_overrides_the_profile_s(
    mixture: Record, dispatcher: str, deduplicates: bool
) -> None:
    for framework in ("megatron-core", "megatron-bridge/megatron-core"):
        record = stating(mixture, moe_dispatcher=dispatcher)
        setup = to_setup(record.model_copy(update={"framework": framework}))
        assert setup.traits.kernels.deduplicated_dispatch is deduplicates


@pytest.mark.parametrize(
    ("notes", "runtime", "overlaps"),
    [
        ("", {}, False),
        ("", {"moe_a2a_overlap": True}, True),
        ("", {"moe_a2a_overlap": False}, False),
        ("1F1B with EP-A2A overlap on.", {}, True),
    ],
)
def test_expert_communication_is_overlapped_where_a_record_says_so(
    mixture: Record, notes: str, runtime: dict[str, bool], overlaps: bool
) -> None:
    record = mixture.model_copy(update={"notes": notes, "runtime": runtime})
    assert overlaps_all_to_all(record) is overlaps
    overlap = to_setup(record).traits.overlap.expert_all_to_all_overlap
    assert overlap == ("batches" if overlaps else "none")


def test_stated_chunks_are_taken(records: dict[str, Record]) -> None:
    record = records[MIXTURE]
    stated = record.parallel.model_copy(update={"vpp": 3})
    assert virtual_stages(record.model_copy(update={"parallel": stated})) == 3
    unstated = record.parallel.model_copy(update={"vpp": None})
    assert virtual_stages(record.model_copy(update={"parallel": unstated})) == 1


def test_torchtitan_interleaves_two_chunks_unless_it_says_otherwise(
    records: dict[str, Record],
) -> None:
    record = records[INTERLEAVED]
    assert record.parallel.vpp is None
    assert virtual_stages(record) == to_run(record).strategy.vpp == 2
    plain = record.model_copy(update={"id": "torchtitan-llama3.1-405b-512h100-3d"})
    assert virtual_stages(plain) == 1
    other = record.model_copy(update={"framework": "megatron-core"})
    assert virtual_stages(other) == 1
