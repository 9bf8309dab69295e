"""Every byte of a stage's modelled peak is an item, and every item adds up."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import Any

import pytest
from contexts import context_of, with_traits

from planner.answers.layout import fill_in, requested
from planner.cost.context import Context
from planner.cost.estimate import memory_estimate
from planner.cost.ledger import LedgerItem, StageLedger, stage_ledger
from planner.cost.stage_model import price
from planner.spec.job import Precision

H, TOKENS, VOCAB = 1024, 1024, 32000
"""The small model of the fixtures: 4 layers, ffn 4H, one sequence per micro-batch."""
PARAMS = 4 * (12 * H**2 + 13 * H) + 2 * VOCAB * H + 2 * H
POLICIES = ("none", "selective", "full")


def ledgers_of(context: Context, **request: object) -> list[tuple[StageLedger, float]]:
    subject = price(*fill_in(context, requested(**request)))
    peaks = subject.model.peak_bytes(*subject.split)[0].tolist()
    return [(stage_ledger(subject, stage), peak) for stage, peak in enumerate(peaks)]


def items_of(ledger: StageLedger) -> dict[str, LedgerItem]:
    return {item.name: item for item in ledger.items}


def bytes_by_head(ledger: StageLedger) -> Counter[str]:
    heads: Counter[str] = Counter()
    for item in ledger.items:
        heads[item.name.partition(".")[0]] += item.num_bytes
    return heads


def layouts() -> Iterator[tuple[str, str, dict[str, object]]]:
    """Framework (and profile), model, layout: dense and mixture, all policies and ZeRO stages."""
    for recompute in POLICIES:
        for pp in (1, 4):
            for model in ("llama3-8b", "gpt3-13b", "mixtral-8x7b", "deepseek-v3"):
                yield "megatron", model, {"tp": 8, "pp": pp, "recompute": recompute}
            yield "torchtitan", "llama3-8b", {"pp": pp, "recompute": recompute}
            one = None if recompute == "none" else 1
            mixed = {"pp": pp, "recompute": recompute, "recompute_layers": one}
            yield "deepspeed pipeline", "llama3-8b", {**mixed, "zero_stage": 1}
        for zero_stage in (1, 2, 3):
            zero = {"zero_stage": zero_stage, "recompute": recompute}
            yield "deepspeed", "gpt3-13b", zero
            yield "deepspeed", "llama3-8b", {**zero, "micro_batch": 4}
        yield "accelerate", "llama3-8b", {"recompute": recompute}
        for model in ("llama3-8b", "deepseek-v3"):
            nine = None if recompute == "none" else 9
            some = {"tp": 8, "recompute": recompute, "recompute_layers": nine}
            yield "megatron", model, {**some, "offloaded_layers": 4}


LAYOUTS = list(layouts())


def under(software: str, model: str) -> Context:
    names = dict(zip(("framework", "profile"), software.split(), strict=False))
    return context_of(model=model, cluster="128xdgx-h100", global_batch=512, seq_len=2048, **names)


@pytest.mark.parametrize(("software", "model", "request_"), LAYOUTS)
def test_items_add_up_to_the_modelled_peak_of_every_stage_and_shapes_to_items(
    software: str, model: str, request_: dict[str, object]
) -> None:
    for ledger, peak in ledgers_of(under(software, model), **{"dp": 32, **request_}):
        sizes = [item.num_bytes for item in ledger.items]
        assert sum(sizes) == pytest.approx(peak, rel=1e-12)
        assert ledger.peak_bytes == pytest.approx(peak, rel=1e-12)
        assert 0 < ledger.allocated_bytes <= ledger.reserved_bytes < ledger.peak_bytes
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[-1] > 0
        if model in ("gpt3-13b", "llama3-8b") and not request_.get("recompute_layers"):
            assert len({item.name for item in ledger.items}) == len(ledger.items)
        shaped = [item for item in ledger.items if item.shape]
        assert {"gradients", "optimizer.states"} <= {item.name for item in shaped}
        for item in shaped:
            stated = prod(item.shape) * item.element_bytes * item.copies
            assert stated == pytest.approx(item.num_bytes, rel=1e-8), item


def small(framework: str = "megatron", **layout: object) -> tuple[StageLedger, dict[str, Any]]:
    usual = {"dp": 1, "zero_stage": 0} if framework == "megatron" else {"dp": 8, "global_batch": 16}
    context = layout.pop("context", context_of(framework=framework))
    ((ledger, _),) = ledgers_of(context, **{**usual, **layout})
    return ledger, items_of(ledger)


def test_states_of_the_small_model_by_hand() -> None:
    # Megatron, one rank, no ZeRO: weights 2, gradients 4, master weights 4, Adam 8.
    _, items = small()
    assert items["weights"].shape == (PARAMS,)
    per_param = {"weights": 2, "gradients": 4, "optimizer.master_weights": 4, "optimizer.states": 8}
    taken = {name: items[name].num_bytes for name in per_param}
    assert taken == {name: size * PARAMS for name, size in per_param.items()}
    # One 16-bit gradient per distinct linear weight: a layer's 12h² and the head's.
    assert items["dummy_weight_gradients"].num_bytes == 2 * (12 * H**2 + VOCAB * H)


def test_an_activation_names_its_tensor_with_one_copy_per_layer() -> None:
    ledger, items = small()
    item = items["activations.mlp_activation.activation"]
    assert (item.shape, item.element_bytes, item.copies) == ((TOKENS, 4 * H), 2.0, 4.0)
    assert item.num_bytes == 4 * TOKENS * 4 * H * 2
    assert item.lifetime == "forward to backward"
    # 32h bytes a token and 4 of log-sum-exp for each of 16 heads, in 4 layers.
    assert bytes_by_head(ledger)["activations"] == 4 * TOKENS * (32 * H + 4 * 16)


@pytest.mark.parametrize("cache", [False, True])
def test_full_recomputation_leaves_inputs_of_layers_and_the_caches_they_return(cache: bool) -> None:
    context = with_traits(context_of(), kernels={"returns_cache": cache})
    ledger, items = small(context=context, recompute="full")
    assert items["activations.recompute_inputs"].num_bytes == 4 * TOKENS * H * 2
    assert bytes_by_head(ledger)["activations"] == (1 + 2 * cache) * 4 * TOKENS * H * 2


def test_offloaded_activations_leave_two_layers_buffers() -> None:
    ledger, items = small(offloaded_layers="all")
    assert "activations" not in bytes_by_head(ledger)
    buffers = items["transient.offload_buffers"]
    assert buffers.num_bytes == 2 * TOKENS * (32 * H + 4 * 16)
    assert buffers.lifetime == "backward of a layer"


def test_copies_are_layers_times_micro_batches_in_flight() -> None:
    # 1F1B on 4 stages of one layer with 16 micro-batches: 4, 3, 2 and 1 in flight.
    found = [
        items_of(ledger)["activations.mlp_activation.activation"].copies
        for ledger, _ in ledgers_of(context_of(), dp=1, pp=4, zero_stage=0)
    ]
    assert found == [4.0, 3.0, 2.0, 1.0]


def test_only_the_last_stage_holds_a_loss() -> None:
    *others, last = [ledger for ledger, _ in ledgers_of(context_of(), dp=1, pp=4)]
    logits = items_of(last)["transient.loss.logits"]
    assert logits.num_bytes == TOKENS * VOCAB * 2
    assert last.moment == "loss of a micro-batch"
    for ledger in others:
        assert ledger.moment == "backward of a layer"
        assert not [item for item in ledger.items if item.lifetime == "loss"]


@pytest.mark.parametrize("pp", [1, 4])
def test_leading_dense_layers_are_on_the_first_stage_only(pp: int) -> None:
    # DeepSeek-V3: 3 dense layers of ffn 18432, then mixtures; p micro-batches in flight on
    # stage 0. tp 8: 18432 / 8 = 2304 columns.
    context = context_of(model="deepseek-v3", cluster="64xdgx-h100", global_batch=512, seq_len=2048)
    first, *others = [ledger for ledger, _ in ledgers_of(context, tp=8, pp=pp, dp=16, ep=16)]
    dense = items_of(first)["activations.mlp_activation.product"]
    assert (dense.shape, dense.copies) == ((2048, 2304), 3.0 * pp)
    assert len(others) == pp - 1
    for ledger in others:
        names = items_of(ledger)
        assert "activations.mlp_activation.product" not in names
        assert "activations.expert_activation.product" in names


def test_only_states_shrink_when_the_zero_stage_rises() -> None:
    heads = [bytes_by_head(small("deepspeed", zero_stage=stage)[0]) for stage in (0, 1, 3)]
    # ZeRO on 8 ranks: 12 bytes of optimizer states and an fp32 gradient partition of 4, 16 / 8.
    assert heads[1]["optimizer"] == pytest.approx(2 * PARAMS, rel=1e-6)
    assert heads[1]["weights"] == heads[0]["weights"] == 2 * PARAMS
    assert heads[2]["weights"] == pytest.approx(2 * PARAMS / 8, rel=1e-6)
    assert len({head["activations"] for head in heads}) == 1


# In fp32 there is the clone of the weights beside both moments.
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_stage_3_copies_the_gradients_of_one_group_at_a_time(precision: Precision) -> None:
    context = context_of(framework="deepspeed", precision=precision)
    ledger, items = small("deepspeed", zero_stage=3, context=context)
    assert items["step_group"].num_bytes == pytest.approx(4 * PARAMS / 8, rel=1e-6)
    assert bytes_by_head(ledger)["optimizer"] == pytest.approx(12 * PARAMS / 8, rel=1e-6)


def test_lifetimes_split_the_peak_between_tensors_allocator_and_device() -> None:
    # Megatron on one rank: 1e9 of context outside, 5 % of fragmentation held by the allocator.
    ledger, _ = small()
    by_lifetime: Counter[str] = Counter()
    for item in ledger.items:
        by_lifetime[item.lifetime] += item.num_bytes
    assert by_lifetime["outside the allocator"] == pytest.approx(1e9)
    assert by_lifetime["held by the allocator"] == pytest.approx(ledger.allocated_bytes * 0.05)
    assert ledger.reserved_bytes == pytest.approx(ledger.peak_bytes - 1e9)
    assert ledger.allocated_bytes == pytest.approx(ledger.reserved_bytes / 1.05)


def test_a_plan_fits_while_cached_blocks_can_be_given_back() -> None:
    memory = memory_estimate(price(*fill_in(context_of(framework="torchtitan"), requested())))
    released = memory.ledger.released_bytes
    assert released == pytest.approx(memory.ledger.reserved_bytes - memory.allocated_bytes)
    limits = [memory.peak_bytes - share * released for share in (0.99, 1.01)]
    verdicts = [replace(memory, hbm_bytes=limit).verdict for limit in limits]
    assert verdicts == ["tight", "does not fit"]
