"""Settings that records state about their run: CUDA graphs, dispatchers, overlap, chunks."""

from pathlib import Path
from typing import Any

import pytest

from planner.cost.estimate import estimate
from planner.validation.mapping import to_run
from planner.validation.profiles import to_setup
from planner.validation.records import Record, Runtime, read_records

LINES = Path(__file__).parents[2] / "validation" / "published_runs.jsonl"
MIXTURE = "moezoo-qwen3-235b-h100-256-deepep"
INTERLEAVED = "torchtitan-llama3.1-405b-512h100-3d-interleaved1f1b"


@pytest.fixture(scope="module")
def records() -> dict[str, Record]:
    return {record.id: record for record in read_records(LINES)}


@pytest.fixture(scope="module")
def mixture(records: dict[str, Record]) -> Record:
    """A mixture's record that states nothing about its runtime."""
    return stating(records[MIXTURE])


def stating(record: Record, **runtime: Any) -> Record:
    return record.model_copy(update={"runtime": Runtime(**runtime)})


def test_graphs_replay_what_they_capture(mixture: Record) -> None:
    def captured(*scope: str) -> float:
        return to_setup(stating(mixture, cuda_graph=scope)).traits.kernels.cuda_graph_fraction

    assert captured("full_iteration") == 1.0
    assert captured("attn", "moe_router") == captured("attn") + captured("moe_router")
    assert captured("attn") > captured("moe_router") > 0.0
    assert captured("attn", "moe_router", "moe_preprocess") < 1.0
    assert captured("mlp") == captured() == 0.0


def test_graphs_as_stated_are_a_trait_with_a_note(mixture: Record) -> None:
    setup = to_setup(stating(mixture, cuda_graph=("attn", "moe_router", "moe_preprocess")))
    assert any(note.startswith("CUDA graphs replay") for note in setup.notes)
    plain = to_setup(mixture)
    assert plain.traits.kernels.cuda_graph_fraction == 0.0
    assert not any("CUDA graphs" in note for note in plain.notes)


@pytest.mark.parametrize(("dispatcher", "deduplicates"), [("flex", True), ("alltoall", False)])
@pytest.mark.parametrize("profile", ["current", "bridge"])
def test_a_stated_dispatcher_overrides_the_profile_s(
    mixture: Record, dispatcher: str, deduplicates: bool, profile: str
) -> None:
    assert mixture.software
    software = mixture.software.model_copy(update={"profile": profile})
    record = stating(mixture, dispatcher=dispatcher).model_copy(update={"software": software})
    assert to_setup(record).traits.kernels.deduplicated_dispatch is deduplicates


@pytest.mark.parametrize(("dispatcher", "permutes"), [("hybridep", True), ("deepep", False)])
def test_one_dispatcher_sorts_tokens_in_its_own_kernels(
    mixture: Record, dispatcher: str, permutes: bool
) -> None:
    kernels = to_setup(stating(mixture, dispatcher=dispatcher)).traits.kernels
    assert kernels.dispatch_permutes is permutes


def test_products_left_in_16_bits_are_a_trait_with_a_note(mixture: Record) -> None:
    setup = to_setup(stating(mixture, products_in_16_bit="experts"))
    assert setup.traits.kernels.products_in_16_bit == "experts"
    assert "experts in 16 bits as stated" in setup.notes


@pytest.mark.parametrize("overlaps", [None, False, True])
def test_expert_communication_is_overlapped_where_a_record_says_so(
    mixture: Record, overlaps: bool | None
) -> None:
    overlap = to_setup(stating(mixture, expert_overlap=overlaps)).traits.overlap
    assert overlap.expert_all_to_all_overlap == ("batches" if overlaps else "none")


def test_gathers_lie_beside_products_where_a_record_says_so(mixture: Record) -> None:
    overlap = to_setup(stating(mixture, tp_overlap=True)).traits.overlap
    assert overlap.tensor_parallel_overlap == "ring"


def test_stated_chunks_are_taken_and_else_those_assumed(records: dict[str, Record]) -> None:
    assert to_run(records[MIXTURE]).strategy.vpp == records[MIXTURE].parallel.vpp == 4
    record = records[INTERLEAVED]
    assert record.parallel.vpp is None
    assert to_run(record).strategy.vpp == record.assumed.vpp == 2


def test_nothing_is_read_from_a_name_or_a_note(records: dict[str, Record]) -> None:
    for record in (records[MIXTURE], records[INTERLEAVED]):
        bare = record.model_copy(update={"id": "x", "notes": "", "framework": "x"})
        assert to_run(bare) == to_run(record)


def test_a_vocabulary_is_padded_as_stated(mixture: Record) -> None:
    assert to_setup(mixture).traits.support.vocab_padding == 128
    found = to_setup(stating(mixture, vocab_padding=1))
    assert found.traits.support.vocab_padding == 1
    assert "vocabulary padded to a multiple of 1 as stated" in found.notes


def test_an_odd_vocabulary_costs_one_rank_more_than_two() -> None:
    """Rows of 50,257 // tp: of small models alone, whose source divides them so."""
    path = LINES.with_name("single_node_runs.jsonl")
    small = {record.id: record for record in read_records(path)}
    one, two = (
        small[f"vtrain-single-h2048-l16-a16-s1024-2gpu-{degrees}-gb16-mb4"]
        for degrees in ("t1p1d2", "t2p1d1")
    )

    def head_s(record: Record) -> float:
        run = to_run(record)
        found = estimate(run.context, run.strategy).time["compute.head_and_loss"]
        return found.busy_s / run.strategy.num_micro_batches

    padded = [stating(record, vocab_padding=128) for record in (one, two)]
    assert head_s(one) / head_s(two) > 1.2 * head_s(padded[0]) / head_s(padded[1])
