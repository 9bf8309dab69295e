"""What Megatron's recompute modules drop and repeat, op by op."""

import fnmatch
from collections.abc import Iterator

import numpy as np
import pytest
from contexts import changed_traits, shape_of
from forward_flops import forward_flops

from planner.catalog.models import load_model
from planner.frameworks.registry import load_traits
from planner.frameworks.settings import with_recompute_modules, with_training
from planner.layers.block import LayerGroup, embedding_op, layer_groups
from planner.layers.op import LayerShape, Op
from planner.spec.training import TARGETS, Mode, Training
from planner.spec.traits import FrameworkTraits

SEQ_LEN = 2048
MIXTRAL = "mixtral-8x7b"


def group_of(model: str, shape: LayerShape, *modules: str, kind: str = "dense") -> LayerGroup:
    traits = with_recompute_modules(load_traits("megatron"), modules)
    groups = layer_groups(load_model(model), shape, traits)
    return next(group for group in groups if group.name == kind)


def dropped(group: LayerGroup) -> set[str]:
    without = {t.name for op in group.ops for t in op.saved if t.num_bytes[0] > 0}
    return without - kept(group)


def kept(group: LayerGroup) -> set[str]:
    return {tensor.name for op in group.ops for tensor in op.kept}


def saving(group: LayerGroup) -> float:
    return float(sum((op.saved_bytes - op.kept_bytes for op in group.ops), start=0.0)[0])


def repeated(group: LayerGroup) -> dict[str, float]:
    return {op.name: float(op.selective_fraction) for op in group.ops if op.selective_fraction}


def repeated_flops_share(group: LayerGroup) -> float:
    flops = [float(np.sum(forward_flops(op))) for op in group.ops]
    shares = [float(op.selective_fraction) for op in group.ops]
    return float(np.dot(shares, flops) / sum(flops))


@pytest.mark.parametrize(
    ("model", "module", "degrees", "drops", "per_token", "repeats"),
    [
        # 32 heads of 4 bytes a token.
        ("llama3-8b", "core_attn", {}, "attention_core.log_sum_exp", 32 * 4, "attention_core"),
        # Both norms of a dense block are fused into the projections behind them.
        *(("llama3-8b", name, {}, "", 0, "") for name in ("layernorm", "moe", "moe_act")),
        ("llama3-8b", "shared_experts", {}, "", 0, ""),
        # Mixtral: h 4096 in 16 bits, split over tp 4; 2 experts per token of ffn 14336.
        (MIXTRAL, "layernorm", {"tp": 4, "sp": 1}, "mlp_norm.output", 2048, "mlp_norm"),
        (MIXTRAL, "moe_act", {}, "expert_activation.product", 2 * 14336 * 2, "expert_activation"),
        # Behind latent attention both norms of a mixture.
        (
            *("deepseek-v3", "layernorm", {}, "attention_norm.output mlp_norm.output"),
            *(2 * 7168 * 2, "attention_norm mlp_norm"),
        ),
        # The norm's output, gate, up and product of ffn 14336, 16 bits each.
        (
            *("llama3-8b", "mlp", {}, "mlp_norm.output mlp_activation.*"),
            *(2 * (4096 + 3 * 14336), "mlp_norm mlp_up mlp_activation mlp_down"),
        ),
        # 2 pairs of (h 4096 + 3 x 14336) in 16 bits, 12 bytes for each of 8 router scores.
        (
            *(MIXTRAL, "moe", {}, "router.* expert_activation.*"),
            2 * 2 * (4096 + 3 * 14336) + 12 * 8,
            "router dispatch expert_up expert_activation expert_down combine",
        ),
        # One shared expert of ffn 2048: gate, up, product in 16 bits.
        (
            *("deepseek-v3", "shared_experts", {}, "shared_expert_activation.*", 3 * 2048 * 2),
            "shared_expert_up shared_expert_activation shared_expert_down",
        ),
        # 128 heads, queries and keys of 192, values of 128; ranks 1536 and 512.
        (
            *("deepseek-v3", "mla_up_proj", {}, "kv_up.* query_norm.normalised kv_norm.normalised"),
            *(2 * (128 * (192 + 192 + 128) + 1536 + 512), "query_norm query_up kv_norm kv_up"),
        ),
    ],
)
def test_a_module_drops_and_repeats_what_it_says(
    model: str, module: str, degrees: dict[str, int], drops: str, per_token: float, repeats: str
) -> None:
    kind = "dense" if model == "llama3-8b" else "moe"
    group = group_of(model, shape_of(seq_len=SEQ_LEN, **degrees), module, kind=kind)
    names = {tensor.name for op in group.ops for tensor in op.saved}
    assert dropped(group) == {one for each in drops.split() for one in fnmatch.filter(names, each)}
    assert saving(group) == SEQ_LEN * per_token
    assert repeated(group) == dict.fromkeys(repeats.split(), 1.0)


def test_leading_layers_keep_the_norm_that_is_fused_into_a_projection() -> None:
    leading = group_of("deepseek-v3", shape_of(seq_len=SEQ_LEN), "layernorm")
    assert dropped(leading) == {"attention_norm.output"}
    assert repeated_flops_share(leading) == 0.0


def test_shares_of_repeated_matrix_products_in_llama() -> None:
    # Per token and layer, multiply-adds: q and output 2h², k and v 2h·1024, MLP 3h·14336;
    # causal attention 2 products of s·h, half of the pairs.
    h, ffn = 4096, 14336
    mlp, attention = 3 * h * ffn, SEQ_LEN * h
    total = 2 * h * h + 2 * h * 1024 + mlp + attention
    shape = shape_of(seq_len=SEQ_LEN)
    for modules, share in (
        (("mlp",), mlp),
        (("core_attn",), attention),
        (("core_attn", "mlp"), mlp + attention),
    ):
        group = group_of("llama3-8b", shape, *modules)
        assert repeated_flops_share(group) == pytest.approx(share / total)


def test_modules_together_save_what_each_saves() -> None:
    shape = shape_of(seq_len=SEQ_LEN)
    names = ("layernorm", "moe_act", "mla_up_proj")
    single = [saving(group_of("deepseek-v3", shape, name, kind="moe")) for name in names]
    assert min(single) > 0
    assert saving(group_of("deepseek-v3", shape, *names, kind="moe")) == sum(single)


@pytest.mark.parametrize(
    ("model", "kernels", "spared"),
    [
        ("llama3-8b", {}, {"mlp_down"}),
        ("llama3-8b", {"stops_recomputation": False}, set()),
        ("llama3-8b", {"dropout": True}, set()),
        ("llama3-8b", {"adapters": "lora"}, set()),
        # Weighted outputs of experts, and the inputs of norms behind a product.
        *((name, {}, set()) for name in ("mixtral-8x7b", "gemma2-9b", "bert-base")),
    ],
)
def test_a_checkpoint_that_stops_early_spares_a_last_product_that_backward_does_not_read(
    model: str, kernels: dict[str, object], spared: set[str]
) -> None:
    traits = load_traits("accelerate")
    if "adapters" in kernels:
        traits = with_training(traits, Training(mode="lora", rank=8))
    else:
        traits = changed_traits(traits, kernels=kernels)
    groups = layer_groups(load_model(model), shape_of(), traits)
    assert {op.name for group in groups for op in group.ops if op.is_spared} == spared


LLAMA = load_model("llama3.1-8b")
TOKENS, HIDDEN, KV, FFN = 1024.0, 4096, 1024, 14336


def trained(mode: Mode = "qlora", *, widens_stream: bool) -> FrameworkTraits:
    traits = changed_traits(load_traits("accelerate"), kernels={"widens_stream": widens_stream})
    return with_training(traits, Training(mode=mode, rank=16, targets=TARGETS))


def plain_and_wide() -> Iterator[dict[str, Op]]:
    for widens in (False, True):
        (group,) = layer_groups(LLAMA, shape_of(), trained(widens_stream=widens))
        yield {op.name: op for op in group.ops}


@pytest.mark.parametrize(
    ("name", "elements"),
    [
        # Inputs of three projections; outputs back to fp32 and once more for the kernel.
        ("qkv", 3 * HIDDEN + 2 * (HIDDEN + 2 * KV)),
        ("mlp_up", 2 * HIDDEN + 2 * FFN),
        ("mlp_down", FFN + HIDDEN),
        ("attention_output", 0),
        ("attention_norm", 0),
    ],
)
def test_casts_around_linear_layers(name: str, elements: int) -> None:
    plain, wide = (ops[name] for ops in plain_and_wide())
    moved = 6.0 * TOKENS * elements
    assert float((wide.forward_bytes - plain.forward_bytes)[0]) == pytest.approx(moved)
    assert float((wide.backward_bytes - plain.backward_bytes)[0]) == pytest.approx(moved)


def test_gates_move_and_keep_twice_as_much_and_norms_are_stored_in_fp32() -> None:
    plain, wide = plain_and_wide()
    for figure in ("forward_bytes", "backward_bytes", "saved_bytes"):
        before, after = (getattr(ops["mlp_activation"], figure)[0] for ops in (plain, wide))
        assert after == 2.0 * before
    assert wide["qkv"].saved_bytes == plain["qkv"].saved_bytes
    assert wide["mlp_norm"].frozen_bytes[0] == 4.0 * HIDDEN
    narrow, wider = (
        embedding_op(LLAMA, shape_of(), trained(widens_stream=each)).frozen_bytes
        for each in (False, True)
    )
    assert wider == 2.0 * narrow


def test_a_base_under_autocast_is_fp32() -> None:
    kinds = [
        layer_groups(LLAMA, shape_of(), trained("lora", widens_stream=w)) for w in (False, True)
    ]
    narrow, wide = (sum(op.frozen_bytes[0] for op in group.ops) for (group,) in kinds)
    assert wide == 2.0 * narrow
