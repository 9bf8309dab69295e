"""What compressed and periodic exchanges cost, by hand and by the figures of their papers."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from planner.cost.collectives import collective_s
from planner.cost.context import Context
from planner.cost.estimate import estimate
from planner.cost.exchange import (
    encoding_bytes,
    exchange_s_per_param,
    exchange_state_bytes,
    hidden_exchange_s,
    low_rank_elements,
    low_rank_fraction,
    sent_bytes,
    tensors_of,
    waited_exchange_s,
)
from planner.cost.topology import Group, group_of
from planner.layers.parameters import count_parameters
from planner.spec.exchange import METHODS, read_exchange
from planner.spec.strategy import Strategy, StrategyColumns

Contexts = Callable[..., Context]
Columns = Callable[..., StrategyColumns]
GIVEN = 1e6


@pytest.fixture
def ddp(context_of: Contexts) -> Context:
    return context_of(framework="accelerate", profile="ddp", cluster="4xdgx-a100")


def exchanging(context: Context, text: str) -> Context:
    traits = replace(context.traits, exchange=read_exchange(text))
    return replace(context, traits=traits)


LSTM = [(28869, 650), *[(2600, 650)] * 6, *[(2600,)] * 6, (28869,)]
"""Tensors of the language model of arXiv 1905.13727, appendix F."""


@pytest.mark.parametrize(("rank", "times"), [(1, 310), (2, 203), (4, 120)])
def test_powersgd_sends_as_little_of_the_lstm_as_its_paper_says(rank: int, times: int) -> None:
    whole = sum(int(np.prod(shape)) for shape in LSTM)
    kept = sum(low_rank_elements(shape, rank) for shape in LSTM)
    assert round(whole / kept) == times


def test_a_tensor_of_which_no_half_is_saved_stays_whole() -> None:
    assert low_rank_elements((8, 8), 2) == 64
    assert low_rank_elements((64, 8), 1) == 72
    assert low_rank_elements((1024,), 1) == 1024
    assert low_rank_elements((4, 8, 16), 1) == 4 + 128


@pytest.mark.parametrize("model", ["bert-large", "llama3-8b", "mixtral-8x7b"])
def test_the_tensors_of_a_model_hold_all_its_parameters(model: str, context_of: Contexts) -> None:
    spec = context_of(model=model).model
    assert tensors_of(spec).elements == count_parameters(spec)


def test_a_hook_in_16_bits_halves_what_fp32_gradients_send(
    ddp: Context, columns_of: Columns
) -> None:
    columns, elements = columns_of(dp=32), np.array([GIVEN])
    plain = sent_bytes(ddp, columns, elements)
    assert plain == pytest.approx(2 * 31 / 32 * 4 * GIVEN)
    for name in ("fp16", "bf16"):
        assert sent_bytes(exchanging(ddp, name), columns, elements) == pytest.approx(plain / 2)
    group = group_of("dp_shard", columns, ddp.cluster)
    hidden = hidden_exchange_s(exchanging(ddp, "fp16"), elements, 4.0, group)
    assert hidden == collective_s("all_reduce", 2.0 * elements, group, ddp.cluster)


@pytest.mark.parametrize(
    ("name", "total", "warm", "times"),
    [
        ("onebit-adam", 152_000, 23_000, 4.9),
        ("onebit-adam", 118_000, 16_000, 5.3),
        ("onebit-lamb", 5_993, 1_000, 4.6),
    ],
)
def test_onebit_optimizers_send_a_fifth_of_fp16_berts_over_a_whole_training(
    name: str, total: int, warm: int, times: float, ddp: Context, columns_of: Columns
) -> None:
    states = replace(ddp.traits.states, gradient_reduce_bytes=2.0)
    in_16_bits = replace(ddp, traits=replace(ddp.traits, states=states))
    columns, elements = columns_of(dp=32), np.array([GIVEN])
    onebit = exchanging(in_16_bits, f"{name}:warmup={warm / total}")
    ratio = sent_bytes(in_16_bits, columns, elements) / sent_bytes(onebit, columns, elements)
    assert round(float(ratio[0]), 1) == times


def test_top_k_sends_values_and_indices_to_every_rank(ddp: Context, columns_of: Columns) -> None:
    columns = columns_of(dp=32)
    sent = sent_bytes(exchanging(ddp, "topk:density=0.01"), columns, np.array([GIVEN]))
    assert sent == pytest.approx(31 * 0.01 * 8 * GIVEN)


def test_two_workers_of_top_k_send_within_what_its_paper_says(
    ddp: Context, columns_of: Columns
) -> None:
    """270 to 600 times less (arXiv 1712.01887, abstract), at a thousandth of the gradients."""
    columns, elements = columns_of(dp=2), np.array([GIVEN])
    sent = sent_bytes(exchanging(ddp, "topk:density=0.001"), columns, elements)
    assert sent_bytes(ddp, columns, elements) / sent == pytest.approx(500)


def test_diloco_sends_five_hundred_times_less_as_its_paper_says(
    ddp: Context, columns_of: Columns
) -> None:
    """8 workers, 500 steps a round (arXiv 2311.08105, abstract)."""
    columns, elements = columns_of(dp=8), np.array([GIVEN])
    sent = sent_bytes(exchanging(ddp, "diloco"), columns, elements)
    assert sent_bytes(ddp, columns, elements) / sent == pytest.approx(500)


def test_gathers_of_compressed_gradients_lose_against_an_all_reduce_on_many_ranks(
    ddp: Context, columns_of: Columns
) -> None:
    few, many = columns_of(dp=4), columns_of(dp=32)
    elements, int8 = np.array([GIVEN]), exchanging(ddp, "int8")
    assert sent_bytes(int8, few, elements) < sent_bytes(ddp, few, elements)
    assert sent_bytes(int8, many, elements) > sent_bytes(ddp, many, elements)


@pytest.mark.parametrize("every", [1, 32, 500])
def test_periodic_exchanges_send_weights_once_in_so_many_steps(
    every: int, ddp: Context, columns_of: Columns
) -> None:
    columns, elements = columns_of(dp=32), np.array([GIVEN])
    for name in ("local", "diloco"):
        sent = sent_bytes(exchanging(ddp, f"{name}:every={every}"), columns, elements)
        assert sent == pytest.approx(sent_bytes(ddp, columns, elements) / every)


def test_waiting_for_weights_is_an_all_reduce_over_the_steps_between(ddp: Context) -> None:
    group = Group(members=(np.array([8.0]), np.array([32.0])), domain=0)
    elements = np.array([GIVEN])
    whole = collective_s("all_reduce", 4.0 * elements, group, ddp.cluster)
    waited = waited_exchange_s(read_exchange("local:every=16"), elements, 4.0, group, ddp.cluster)
    assert waited == pytest.approx(whole / 16)
    signs = waited_exchange_s(
        read_exchange("onebit-adam:warmup=0"), elements, 4.0, group, ddp.cluster
    )
    there = collective_s("all_to_all", elements / 8, group, ddp.cluster)
    assert signs == there + collective_s("all_gather", elements / 8, group, ddp.cluster)


def test_states_of_an_exchange_are_those_of_its_code(ddp: Context, columns_of: Columns) -> None:
    columns = columns_of(dp=32)

    def kept(text: str) -> float:
        return float(exchange_state_bytes(exchanging(ddp, text), columns)[0])

    fraction = low_rank_fraction(ddp.model, read_exchange("powersgd:rank=4"))
    assert kept("powersgd:rank=4") == pytest.approx(4 * (1 + fraction))
    assert kept("onebit-adam") == 4 + 4 / 32
    assert (kept("topk"), kept("diloco")) == (4, 8)
    assert kept("local") == kept("fp16") == 0


def test_encoding_reads_and_writes_gradients(ddp: Context) -> None:
    wire, ranks = np.array([4.0]), np.array([8.0])
    assert encoding_bytes(read_exchange("fp16"), wire, ranks) == 12
    assert encoding_bytes(read_exchange("powersgd"), wire, ranks) == 44
    assert encoding_bytes(read_exchange("int8"), wire, ranks) == 5 + 8 * 9
    assert encoding_bytes(read_exchange("local"), wire, ranks) == 0
    assert encoding_bytes(read_exchange("diloco:every=100"), wire, ranks) == pytest.approx(0.24)


SPLIT = Strategy(
    dp=32,
    tp=1,
    pp=1,
    vpp=1,
    cp=1,
    ep=1,
    etp=1,
    zero_stage=0,
    micro_batch=1,
    num_micro_batches=1,
    sequence_parallel=False,
    offload="none",
    layers_per_stage=(4,),
    selective_layers_per_stage=(0,),
    recompute_layers_per_stage=(0,),
)


@pytest.mark.parametrize("name", [name for name in METHODS if name != "async-server"])
def test_items_of_time_and_memory_add_up_whatever_the_exchange(name: str, ddp: Context) -> None:
    found = estimate(exchanging(ddp, name), SPLIT)
    shown = sum(item.exposed_s for item in found.time.values())
    assert shown == pytest.approx(found.iter_time_s)
    assert found.time["gradient_exchange"].exposed_s >= 0
    assert sum(found.memory.items.values()) == pytest.approx(found.memory.peak_bytes)


def test_a_plain_plan_has_no_item_of_exchange(ddp: Context) -> None:
    found = estimate(ddp, SPLIT)
    assert "gradient_exchange" not in found.time
    assert "optimizer.gradient_exchange" not in found.memory.items


def test_a_worker_of_diloco_may_be_sharded_inside(
    context_of: Contexts, columns_of: Columns
) -> None:
    context = exchanging(context_of(framework="torchtitan", cluster="4xdgx-a100"), "diloco")
    columns = columns_of(dp=32, zero_stage=[2, 2], dp_replicate=[2, 4])
    per_param = exchange_s_per_param(context, columns, np.ones(2))
    assert 0 < per_param[0] < per_param[1]
