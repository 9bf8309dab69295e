"""Machine, settings and adapters that records state: CUDA graphs, dispatchers, overlap, chunks."""

from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

from planner.catalog.clusters import load_cluster
from planner.cost.estimate import estimate
from planner.spec.training import TARGETS
from tools.validation.mapping import to_run
from tools.validation.records import Hardware, Lora, Record, Runtime, read_records, read_runs
from tools.validation.setup import HOST, CannotEstimateError, to_cluster, to_setup, to_training

LINES = Path(__file__).parents[3] / "validation" / "published_runs.jsonl"
TUNED = LINES.with_name("fine_tuning_runs.jsonl")
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


def test_graphs_as_stated_are_a_trait_with_a_note(mixture: Record) -> None:
    setup = to_setup(stating(mixture, cuda_graph=("attn", "moe_router", "moe_preprocess")))
    assert any(note.startswith("CUDA graphs replay") for note in setup.notes)
    plain = to_setup(mixture)
    assert plain.traits.kernels.cuda_graph_fraction == 0.0
    assert not any("CUDA graphs" in note for note in plain.notes)


@pytest.mark.parametrize("profile", ["current", "bridge"])
def test_a_stated_dispatcher_overrides_the_profile_s(mixture: Record, profile: str) -> None:
    software = mixture.software.model_copy(update={"profile": profile})
    for dispatcher, used in (("flex", "deepep"), ("alltoall", "alltoall")):
        record = stating(mixture, dispatcher=dispatcher).model_copy(update={"software": software})
        assert to_setup(record).traits.kernels.dispatcher == used


@pytest.mark.parametrize(
    ("stated", "place", "value"),
    [
        ({"dispatcher": "hybridep"}, "kernels.dispatcher", "hybridep"),
        ({"dispatcher": "deepep"}, "kernels.dispatcher", "deepep"),
        ({"products_in_16_bit": "experts"}, "kernels.in_8_bit", ("linears",)),
        ({}, "overlap.expert_all_to_all_overlap", "none"),
        ({"expert_overlap": False}, "overlap.expert_all_to_all_overlap", "none"),
        ({"expert_overlap": True}, "overlap.expert_all_to_all_overlap", "batches"),
        ({"tp_overlap": True}, "overlap.tensor_parallel_overlap", "ring"),
        ({}, "support.vocab_padding", 128),
        ({"vocab_padding": 1}, "support.vocab_padding", 1),
    ],
)
def test_what_a_record_states_of_its_software_is_a_trait(
    mixture: Record, stated: dict[str, Any], place: str, value: object
) -> None:
    setup = to_setup(stating(mixture, **stated))
    assert attrgetter(place)(setup.traits) == value
    words = ("experts in 16 bits as stated", "vocabulary padded to a multiple of 1 as stated")
    said = {"products_in_16_bit", "vocab_padding"} & stated.keys()
    assert len(set(words) & set(setup.notes)) == len(said)


def test_stated_chunks_are_taken_and_else_those_assumed(records: dict[str, Record]) -> None:
    assert to_run(records[MIXTURE]).strategy.vpp == records[MIXTURE].parallel.vpp == 4
    record = records[INTERLEAVED]
    assert record.parallel.vpp is None
    assert to_run(record).strategy.vpp == record.assumed.vpp == 2


def test_nothing_is_read_from_a_name_or_a_note(records: dict[str, Record]) -> None:
    for record in (records[MIXTURE], records[INTERLEAVED]):
        bare = record.model_copy(update={"id": "x", "notes": "", "framework": "x"})
        assert to_run(bare) == to_run(record)


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


def test_a_run_on_a_part_of_a_node_has_its_whole_processor() -> None:
    whole = load_cluster("1xdgx-a100-320").node
    one = to_cluster(Hardware(gpu="a100", gpus=1, node="dgx-a100-320")).node
    assert one.num_accelerators == 1
    for name in HOST:
        assert getattr(one, name) == getattr(whole, name)
    assert one.nic_bytes_per_s == whole.nic_bytes_per_s / whole.num_accelerators


@pytest.fixture(scope="module")
def tuned() -> dict[str, Record]:
    return {record.id: record for record in read_runs(TUNED).records}


def lora(**given: object) -> Lora:
    return Lora.model_validate({"rank": 16, "target_modules": ("q_proj", "v_proj"), **given})


def test_a_base_of_4_bits_is_qlora_and_one_of_16_lora() -> None:
    assert to_training(lora()).mode == "lora"
    found = to_training(lora(quantized_base_bits=4))
    assert (found.mode, found.rank, found.targets) == ("qlora", 16, ("q", "v"))
    assert to_training(lora(concurrent_adapters=4)).num_adapters == 4
    joined = to_training(lora(target_modules=("c_attn",), modules_to_save=("wte", "lm_head")))
    assert joined.targets == ("q", "k", "v", "embedding", "head")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"quantized_base_bits": 8}, "a base of 8 bits is not modelled"),
        ({"modules_to_save": ("score",)}, "other modules: unknown .*score"),
        ({"target_modules": ("q_proj", "conv")}, "adapters of other modules: unknown .*conv"),
        ({"target_modules": ("input_layernorm",)}, "other modules: unknown .*input_layernorm"),
        ({"target_modules": ()}, "targets of the adapters not published"),
        ({"rank": None}, "rank of the adapters not published"),
    ],
)
def test_what_is_not_modelled_is_named(given: dict[str, object], said: str) -> None:
    with pytest.raises(CannotEstimateError, match=said):
        to_training(lora(**given))


def test_a_run_trains_what_its_record_says(tuned: dict[str, Record]) -> None:
    run = to_run(tuned["fms-main-mistral-7b-lora-accelerated-peft-bnb-b4-2xa100"])
    training = run.context.traits.training
    assert (training.mode, training.rank, training.targets) == ("qlora", 16, TARGETS[:4])
    assert run.strategy.zero_stage == 3


@pytest.mark.parametrize(
    ("name", "said"),
    [
        # DoRA trains magnitudes beside the adapters.
        ("peft-mm-llama3.2-3b-dora-r32-1xl40s", "9,289,728 .*not those of adapters, 9,175,040"),
        ("gaudi-llama2-7b-lora-fsdp-s512-8xgaudi2", "trains full here; given lora"),
        ("primerl-qwen3-30b-a3b-rl-lora16-s16k-8xh100-fa3", "experts of its family are not"),
        ("torchtune-llama3.2-3b-lora-1xa100", "this offload is not modelled"),
    ],
)
def test_runs_that_cannot_be_estimated_are_skipped_by_name(
    tuned: dict[str, Record], name: str, said: str
) -> None:
    with pytest.raises(CannotEstimateError, match=said):
        to_run(tuned[name])


def test_a_projection_that_the_model_lacks_is_named(tuned: dict[str, Record]) -> None:
    record = tuned["fms-main-mistral-7b-lora-none-b4-1xa100"]
    model = record.model.model_copy(update={"gated_mlp": False})
    gate = {"model": model, "lora": lora(target_modules=("gate_proj", "up_proj"))}
    with pytest.raises(CannotEstimateError, match="has no gate; allowed are"):
        to_run(record.model_copy(update=gate))
