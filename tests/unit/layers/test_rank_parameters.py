"""Parameters of one rank: by hand, against whole models, and against the cost model."""

from math import gcd

import pytest
from contexts import columns_of, context_of
from rank_parameters import RankParameters, rank_parameters

from planner.catalog import list_models
from planner.catalog.models import load_model
from planner.cost.context import Context
from planner.cost.stage_parts import stage_parameters
from planner.layers.parameters import count_parameters
from planner.spec.strategy import StrategyColumns

MODELS = list_models()
MIXED = [
    name
    for name in MODELS
    if (model := load_model(name)).layer_pattern
    or model.num_decoder_layers
    or (model.moe and model.moe.moe_layer_step > 1)
]
"""Kinds of layers take turns or follow each other; the cost model averages them."""


def split(num_layers: int, parts: int) -> list[int]:
    return [num_layers // parts + (part < num_layers % parts) for part in range(parts)]


@pytest.mark.parametrize("name", MODELS)
def test_stages_add_up_to_the_model_and_the_copy_of_a_tied_embedding(name: str) -> None:
    model = load_model(name)
    assert rank_parameters(model, [model.num_blocks], stage=0).total == count_parameters(model)
    chunks = split(model.num_blocks, 6)
    stages = [rank_parameters(model, chunks, stage=stage, vpp=2) for stage in range(3)]
    copy = model.vocab_size * model.hidden_size if model.tied_embeddings else 0
    assert sum(stage.total for stage in stages) == count_parameters(model) + copy


def test_llama3_8b_over_two_stages_and_four_tensor_ranks_by_hand() -> None:
    # layer: qkv 6144 * 4096 / 4 = 6,291,456; output 4096^2 / 4 = 4,194,304;
    #        up, gate and down 3 * 14336 * 4096 / 4 = 44,040,192; norms 8,192; sum 54,534,144
    # vocabulary padded to a multiple of 512: 128,512; a quarter of it times 4096 = 131,596,288
    model = load_model("llama3-8b")
    for stage, held in ((0, 15 * 54_534_144 + 131_596_288), (1, 17 * 54_534_144 + 131_600_384)):
        found = rank_parameters(model, [15, 17], stage=stage, tp=4, vocab_padding=128)
        assert found == RankParameters(dense=held, experts=0)


def test_experts_are_shared_out_and_their_router_is_not() -> None:
    # mixtral-8x7b: 3 * 14336 * 4096 = 176,160,768 an expert, 32 layers, 2 of 8 experts a rank
    model = load_model("mixtral-8x7b")
    whole = rank_parameters(model, [32], stage=0)
    quarter = rank_parameters(model, [32], stage=0, ep=4)
    assert quarter.experts == 32 * 2 * 176_160_768
    assert whole == RankParameters(dense=quarter.dense, experts=4 * quarter.experts)


def priced(context: Context, columns: StrategyColumns, chunks: list[int], stage: int) -> float:
    parts = stage_parameters(context, columns)
    costs = parts.costs
    layer, lead = (
        costs.at(memory.params + memory.expert_params).item() for memory in (costs.body, costs.lead)
    )
    pp = columns.pp.item()
    total: float = layer * sum(chunks[stage::pp])
    total += (parts.first_params.item() + costs.num_leading * (lead - layer)) * (stage == 0)
    total += parts.last_params.item() * (stage == pp - 1)
    return total


@pytest.mark.parametrize("name", MODELS)
def test_the_cost_model_prices_what_every_stage_holds_or_of_mixed_layers_all_together(
    name: str,
) -> None:
    model = load_model(name)
    context = context_of(model=model)
    padding = context.traits.support.vocab_padding
    ep = gcd(8, model.moe.num_experts) if model.moe else 1
    layouts = ((1, 1, 1), (2, 2, 1), (4, 4, 1), (8, 2, 2))
    for tp, pp, vpp in ((2, 4, 1),) if name in MIXED else layouts:
        if model.num_heads % tp or model.ffn_size % tp:
            continue
        chunks = split(model.num_blocks, pp * vpp)
        columns = columns_of(dp=ep, tp=tp, pp=pp, vpp=vpp, ep=ep)
        degrees = {"vpp": vpp, "tp": tp, "ep": ep, "vocab_padding": padding}
        held = [rank_parameters(model, chunks, stage=n, **degrees).total for n in range(pp)]
        found = [priced(context, columns, chunks, stage) for stage in range(pp)]
        if name in MIXED:
            held, found = [sum(held)], [round(sum(found))]
        assert found == held
