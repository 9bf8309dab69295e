"""Parameters of every pipeline stage against Megatron-Core's own GPTModel, to the last one."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from contexts import columns_of, context_of, with_traits
from megatron_model import RankCase
from rank_parameters import RankParameters, rank_parameters
from starts import Starts, running

from planner.catalog.models import load_model_details
from planner.cost.stage_parts import stage_parameters
from planner.frameworks.registry import load_traits
from planner.frameworks.settings import with_training
from planner.layers.adapter_targets import adapter_params
from planner.layers.parameters import count_mtp_parameters
from planner.spec.model import ModelSpec, MoeSpec
from planner.spec.training import Target, Training, read_targets

VOCAB_PADDING = load_traits("megatron", "current").support.vocab_padding
POSITIONS = {"learned": "learned_absolute", "rope": "rope"}
NORMS = {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm"}


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Degrees, and the layers of every model chunk from embedding to head."""

    chunks: tuple[int, ...]
    vpp: int = 1
    tp: int = 1
    ep: int = 1
    split: str = "even"
    """Who splits: ``even``, Megatron; ``short ends``, Megatron, which counts embedding and loss
    as a layer each; ``listed``, the layout handed to Megatron."""

    @property
    def pp(self) -> int:
        return len(self.chunks) // self.vpp

    def __str__(self) -> str:
        return f"tp{self.tp}-ep{self.ep}-pp{self.pp}-v{self.vpp}-{self.split.replace(' ', '_')}"


def even(num_layers: int, *, pp: int = 1, vpp: int = 1, tp: int = 1, ep: int = 1) -> Layout:
    return Layout(chunks=(num_layers // (pp * vpp),) * (pp * vpp), vpp=vpp, tp=tp, ep=ep)


def listed(*chunks: int, vpp: int = 1, tp: int = 1, ep: int = 1) -> Layout:
    return Layout(chunks=chunks, vpp=vpp, tp=tp, ep=ep, split="listed")


def short_ends(num_layers: int, *, pp: int, vpp: int = 1, tp: int = 1) -> Layout:
    inner = (num_layers + 2) // (pp * vpp)
    chunks = (inner - 1, *(inner,) * (pp * vpp - 2), inner - 1)
    return Layout(chunks=chunks, vpp=vpp, tp=tp, split="short ends")


def dense_layouts(num_layers: int, max_tp: int) -> list[Layout]:
    """tp 1 to max_tp, pp 1 to 4, two chunks a stage, uneven stages."""
    quarter = num_layers // 4
    uneven = (quarter - 1, quarter + 2, quarter, quarter - 1)
    return [
        *(even(num_layers, tp=tp) for tp in (1, 2, 4, 8) if tp <= max_tp),
        even(num_layers, pp=2),
        even(num_layers, pp=4, tp=max_tp),
        even(num_layers, pp=2, vpp=2, tp=2),
        listed(*uneven, tp=2),
        listed(*uneven, vpp=2, tp=2),
    ]


def moe_layouts(num_layers: int) -> list[Layout]:
    """As :func:`dense_layouts`, with experts over 2 and 8 ranks."""
    quarter = num_layers // 4
    uneven = (quarter - 1, quarter + 2, quarter, num_layers - 3 * quarter - 1)
    return [
        listed(num_layers),
        listed(num_layers, ep=2),
        listed(num_layers, ep=8, tp=2),
        listed(num_layers, ep=2, tp=8),
        listed(*uneven),
        listed(*uneven, ep=2, tp=4),
        listed(*uneven, ep=8, vpp=2),
    ]


DENSE = {
    "llama3-8b": dense_layouts(32, 8),
    "llama3.1-405b": [
        short_ends(126, pp=16, vpp=4, tp=8),
        short_ends(126, pp=4, vpp=2, tp=2),
        even(126, pp=9, tp=8),
    ],
    "gpt3-175b-megatron": dense_layouts(96, 8),
    "gpt2-small": dense_layouts(12, 4),
    "llama3.2-1b": dense_layouts(16, 8),
    "nemotron-4-15b": dense_layouts(32, 8),
    "qwen2.5-7b": dense_layouts(28, 4),
    "qwen2.5-0.5b": dense_layouts(24, 2),
    "qwen3-8b": dense_layouts(36, 8),
}
MIXTURES = {
    "mixtral-8x7b": [*moe_layouts(32), even(32, pp=4, vpp=2, tp=2, ep=8)],
    "qwen3-30b-a3b": [listed(48, ep=8, tp=2), listed(11, 13, 12, 12, tp=4, ep=8)],
    "deepseek-v2-lite": moe_layouts(27),
    "deepseek-v3": [listed(*[16, 15, 15, 15], tp=8, ep=8), listed(*[8] * 7, 5, vpp=2, ep=8)],
    "glm-4.5-air": [listed(*[12, 12, 11, 11], tp=2, ep=8), even(46, pp=2, tp=8, ep=2)],
    "llama4-maverick-17b-128e": [even(48, pp=4, tp=8, ep=8), listed(5, 19, 13, 11, vpp=2, ep=2)],
    "gpt-oss-20b": [even(24), even(24, pp=2, ep=8), listed(7, 9, 8, ep=2)],
}


def cases(table: dict[str, list[Layout]]) -> list[Any]:
    return [
        pytest.param(name, layout, id=f"{name}-{layout}")
        for name, layouts in table.items()
        for layout in layouts
    ]


@pytest.fixture(scope="module")
def megatron(megatron_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Starts]:
    with running("megatron_model.py", tmp_path_factory.mktemp("megatron"), megatron_path) as ranks:
        yield ranks


def mixture_config(model: ModelSpec, moe: MoeSpec) -> dict[str, Any]:
    step, leading = moe.moe_layer_step, moe.num_leading_dense_layers
    period = [0] * (step - 1) + [1]
    pattern = [0] * leading + period * ((model.num_layers - leading) // step)
    return {
        "num_moe_experts": moe.num_experts,
        "moe_router_topk": moe.top_k,
        "moe_router_pre_softmax": moe.top_k == 1,
        "moe_ffn_hidden_size": moe.expert_ffn_size,
        "moe_shared_expert_intermediate_size": moe.shared_ffn_size or None,
        "moe_layer_freq": pattern,
        "moe_router_enable_expert_bias": moe.router_bias and not moe.expert_bias,
        "moe_router_score_function": "sigmoid" if moe.router_bias else "softmax",
        "moe_token_dispatcher_type": "alltoall",
    }


def latent_config(model: ModelSpec) -> dict[str, Any]:
    mla = model.mla
    assert mla is not None
    return {
        "q_lora_rank": mla.q_lora_rank or None,
        "kv_lora_rank": mla.kv_lora_rank,
        "qk_head_dim": mla.qk_nope_head_dim,
        "qk_pos_emb_head_dim": mla.qk_rope_head_dim,
        "v_head_dim": mla.v_head_dim,
        "qk_layernorm": mla.q_lora_rank > 0,
    }


def transformer_config(model: ModelSpec) -> dict[str, Any]:
    """The model in Megatron's words; only for shapes that Megatron has words for."""
    biases = (model.biases.qkv, model.biases.attention_output, model.biases.mlp)
    assert biases in {(True, True, True), (True, False, False), (False, False, False)}
    assert model.qk_norm in {"none", "head"}
    assert model.norms_per_layer == 2
    assert not model.biases.lm_head
    config = {
        "num_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "num_attention_heads": model.num_heads,
        "num_query_groups": model.num_kv_heads,
        "kv_channels": model.head_dim,
        "ffn_hidden_size": model.ffn_size,
        "gated_linear_unit": model.gated_mlp,
        "normalization": NORMS[model.norm],
        "add_bias_linear": all(biases),
        "add_qkv_bias": model.biases.qkv,
        "qk_layernorm": model.qk_norm == "head",
    }
    if model.extra_params_per_layer:
        assert model.extra_params_per_layer == model.num_heads, "only attention sinks"
        config["softmax_type"] = "learnable"
    mixture = mixture_config(model, model.moe) if model.moe else {}
    latent = latent_config(model) if model.mla else {}
    return config | mixture | latent


def rank_case(name: str, layout: Layout, **place: int) -> RankCase:
    details = load_model_details(name)
    model = replace(details.spec, num_layers=sum(layout.chunks))
    accounted = layout.split == "short ends"
    ends = {
        "account_for_embedding_in_pipeline_split": accounted,
        "account_for_loss_in_pipeline_split": accounted,
    }
    return RankCase(
        config=transformer_config(model) | ends,
        vocab_size=model.vocab_size,
        vocab_padding=VOCAB_PADDING,
        max_sequence_length=model.num_learned_positions or model.max_seq_len,
        position_embedding=POSITIONS[details.spec.position],
        tied=model.tied_embeddings,
        latent_attention=model.mla is not None,
        tp=layout.tp,
        pp=layout.pp,
        vpp=layout.vpp,
        ep=layout.ep,
        chunks=list(layout.chunks) if layout.split == "listed" else [],
        **place,
    )


def planned(name: str, layout: Layout, stage: int) -> RankParameters:
    return rank_parameters(
        load_model_details(name).spec,
        layout.chunks,
        stage=stage,
        vpp=layout.vpp,
        tp=layout.tp,
        ep=layout.ep,
        vocab_padding=VOCAB_PADDING,
    )


def gains_without_query_rank(name: str, layout: Layout, stage: int) -> int:
    """Gains over latent keys and values where queries are projected directly.

    Megatron-Core 0.19 has them only together with gains over the queries, which DeepSeek-V2-Lite
    does not have; it is built without either.
    """
    mla = load_model_details(name).spec.mla
    if mla is None or mla.q_lora_rank:
        return 0
    return mla.kv_lora_rank * sum(layout.chunks[stage :: layout.pp])


def counted(megatron: Starts, case: RankCase) -> RankParameters:
    tensors = megatron.made(case)
    experts = sum(size for name, size in tensors.items() if ".experts." in name)
    return RankParameters(dense=sum(tensors.values()) - experts, experts=experts)


@pytest.mark.parametrize(("name", "layout"), cases(DENSE | MIXTURES))
def test_every_stage_holds_what_megatron_builds(
    megatron: Starts, name: str, layout: Layout
) -> None:
    for stage in range(layout.pp):
        ours = planned(name, layout, stage)
        theirs = counted(megatron, rank_case(name, layout, stage=stage))
        missing = gains_without_query_rank(name, layout, stage)
        assert ours == theirs._replace(dense=theirs.dense + missing), f"stage {stage}"


@pytest.mark.parametrize(("name", "layout"), cases(DENSE))
def test_the_cost_model_prices_what_megatron_builds(
    megatron: Starts, name: str, layout: Layout
) -> None:
    columns = columns_of(tp=layout.tp, pp=layout.pp, vpp=layout.vpp)
    parts = stage_parameters(context_of(model=name), columns)
    for stage in range(layout.pp):
        priced = parts.params.item() * sum(layout.chunks[stage :: layout.pp])
        priced += parts.first_params.item() * (stage == 0)
        priced += parts.last_params.item() * (stage == layout.pp - 1)
        built = counted(megatron, rank_case(name, layout, stage=stage))
        assert priced == built.total


def test_all_ranks_of_a_stage_hold_equally_much(megatron: Starts) -> None:
    layout = even(32, pp=2, tp=2, ep=2)
    for stage in range(layout.pp):
        ranks = {
            counted(
                megatron,
                rank_case(
                    "mixtral-8x7b", layout, stage=stage, tensor_rank=tensor, expert_rank=expert
                ),
            )
            for tensor in range(layout.tp)
            for expert in range(layout.ep)
        }
        assert ranks == {planned("mixtral-8x7b", layout, stage)}


@pytest.mark.parametrize(("name", "tp"), [("llama3-8b", 16), ("qwen2.5-1.5b", 4)])
def test_ranks_beyond_the_key_value_heads_split_their_rows(
    megatron: Starts, name: str, tp: int
) -> None:
    layout = even(load_model_details(name).spec.num_layers, tp=tp)
    assert planned(name, layout, 0) == counted(megatron, rank_case(name, layout))


MODULES: dict[str, tuple[Target, ...]] = {
    "linear_qkv": ("q", "k", "v"),
    "linear_proj": ("o",),
    "linear_fc1": ("gate", "up"),
    "linear_fc2": ("down",),
}
ADAPTED = [
    ("llama3-8b", even(32, pp=4, vpp=2, tp=2)),
    ("llama3-8b", even(32, tp=8)),
    ("qwen3-8b", listed(8, 11, 9, 8, tp=4)),
    ("qwen2.5-7b", even(28)),
    ("gpt2-small", even(12, tp=2)),
    ("nemotron-4-15b", even(32, pp=2, tp=8)),
    ("mixtral-8x7b", even(32, tp=2, ep=2)),
    ("mixtral-8x7b", even(32, pp=2, tp=2)),
]


@pytest.mark.parametrize("modules", [("linear_qkv",), ("linear_proj", "linear_fc1"), (*MODULES,)])
@pytest.mark.parametrize(("name", "layout"), ADAPTED, ids=str)
def test_every_rank_trains_the_adapters_that_bridge_makes(
    megatron: Starts, name: str, layout: Layout, modules: tuple[str, ...]
) -> None:
    targets = tuple(target for module in modules for target in MODULES[module])
    training = Training(mode="lora", rank=16, targets=read_targets(",".join(targets)))
    context = context_of(model=name, framework="megatron", profile="bridge")
    context = replace(context, traits=with_training(context.traits, training))
    # Without Transformer Engine experts are modules, each with an adapter.
    context = with_traits(context, kernels={"expert_adapters": "each"})
    degrees = {"tp": layout.tp, "pp": layout.pp, "vpp": layout.vpp, "ep": layout.ep}
    parts = stage_parameters(context, columns_of(**degrees, etp=layout.tp))
    assert not parts.first_params.item()
    assert not parts.last_params.item()
    adapters = {"dim": 16, "target_modules": modules}
    built = 0
    for stage in range(layout.pp):
        case = replace(rank_case(name, layout, stage=stage), adapters=adapters)
        tensors = megatron.made(case)
        assert all(".adapter." in tensor for tensor in tensors)
        layers = sum(layout.chunks[stage :: layout.pp])
        assert parts.params.item() * layers == sum(tensors.values()), f"stage {stage}"
        built += sum(tensors.values())
    whole = adapter_params(context.model, training, context.traits.kernels)
    assert layout.ep > 1 or built * layout.tp == whole


AHEAD = [
    ("deepseek-v3", listed(*[16, 15, 15, 15], tp=8, ep=8), 1),
    ("deepseek-v3", listed(*[8] * 7, 5, vpp=2, ep=8), 2),
    ("glm-4.5-air", even(46, pp=2, tp=8, ep=2), 1),
    ("glm-4.5-air", even(2), 1),
    ("llama3-8b", even(32, pp=2, tp=2), 3),
    ("qwen2.5-1.5b", even(28, pp=2, tp=2), 1),
    ("qwen2.5-1.5b", even(28), 1),
]


@pytest.mark.parametrize(("name", "layout", "number"), AHEAD)
def test_multi_token_prediction_adds_what_megatron_builds(
    megatron: Starts, name: str, layout: Layout, number: int
) -> None:
    """On the stage of the head, with the embedding where that lies on another; on no other."""
    columns = columns_of(
        tp=layout.tp, pp=layout.pp, vpp=layout.vpp, ep=layout.ep, etp=layout.tp, dp=layout.ep
    )
    without, ahead = (
        stage_parameters(context_of(model=name, mtp_layers=each), columns) for each in (0, number)
    )
    dense = ahead.mtp_params + ahead.last_params - without.last_params
    added = RankParameters(dense=int(dense.item()), experts=int(ahead.mtp_expert_params.item()))
    for stage in range(layout.pp):
        case = rank_case(name, layout, stage=stage)
        with_mtp = counted(megatron, replace(case, mtp_layers=number))
        before = counted(megatron, case)
        is_last = stage == layout.pp - 1
        assert with_mtp.dense - before.dense == added.dense * is_last, f"stage {stage}"
        assert with_mtp.experts - before.experts == added.experts * is_last, f"stage {stage}"


def test_the_whole_of_multi_token_prediction_is_counted(megatron: Starts) -> None:
    """It is the same behind few layers as behind all."""
    for name in ("deepseek-v3", "glm-4.5-air"):
        model = load_model_details(name).spec
        assert model.moe is not None
        case = rank_case(name, even(model.moe.num_leading_dense_layers + 1))
        added = counted(megatron, replace(case, mtp_layers=1)).total - counted(megatron, case).total
        assert added == count_mtp_parameters(model)
