"""What the planner says a layer keeps for backward, against what real layers keep.

Every storage is matched to named tensors of the planner's ops by size, element size and half of
the block; a storage may be several tensors of one op (a fused projection's output). Nothing may be
left on either side but what ``left_out`` names.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import saved_tensors as sizes
from saved_tensors import Measured, SavedStorage

from planner.frameworks.registry import load_saved_tables, load_traits
from planner.frameworks.settings import with_training
from planner.layers.block import layer_groups
from planner.layers.op import LayerShape, Op, SavedTensor
from planner.spec.model import MlaSpec, ModelSpec, MoeSpec
from planner.spec.saved import SavedTables
from planner.spec.training import TARGETS, Target, Training

ATTENTION_OPS = """
attention_norm query_norm kv_norm kv_up qkv attention_core attention_output adapters.qkv
adapters.attention_output
"""
QKV: tuple[Target, ...] = ("q", "k", "v")
MOE = MoeSpec(num_experts=sizes.NUM_EXPERTS, top_k=sizes.TOP_K, expert_ffn_size=sizes.EXPERT_FFN)
MLA = MlaSpec(
    q_lora_rank=sizes.QUERY_RANK,
    kv_lora_rank=sizes.KV_RANK,
    qk_nope_head_dim=sizes.HEAD_DIM - sizes.ROPE_DIM,
    qk_rope_head_dim=sizes.ROPE_DIM,
    v_head_dim=sizes.HEAD_DIM,
)
LLAMA = ModelSpec(**sizes.BLOCK)
GPT = replace(LLAMA, num_kv_heads=sizes.NUM_HEADS, gated_mlp=False, norm="layernorm")
GPT2 = replace(GPT, head_dim=sizes.HIDDEN // sizes.NUM_HEADS)
STARCODER2 = replace(GPT2, num_kv_heads=sizes.NUM_KV_HEADS)
MIXTURE = replace(LLAMA, moe=MOE)
LATENT = replace(LLAMA, num_kv_heads=sizes.NUM_HEADS, mla=MLA)
PLAIN_LATENT = replace(LATENT, mla=replace(MLA, q_lora_rank=0))
SHARED = replace(MOE, shared_ffn_size=2 * sizes.EXPERT_FFN)
TITAN_MODELS = {
    "normed": replace(LLAMA, qk_norm="head"),
    "mixture": MIXTURE,
    "latent": PLAIN_LATENT,
    "latent_query": LATENT,
    "latent_mixture": replace(PLAIN_LATENT, moe=SHARED),
}


@dataclass(frozen=True, kw_only=True)
class Block:
    """A measured block and how the planner is told it."""

    library: str
    name: str
    table: str
    model: ModelSpec = field(default_factory=lambda: LLAMA)
    unfused: bool = False
    dropout: bool = False
    tp: int = 1
    ep: int = 1
    sequence_parallel: bool = False
    selective: str = ""  # Profile whose selective recomputation is measured
    router: str = ""  # Table of the router's tensors, if another than ``table``
    targets: tuple[Target, ...] = ()  # Projections with adapters, where those alone are trained

    def __str__(self) -> str:
        return f"{self.library}-{self.name}"


def megatron(name: str, table: str, model: ModelSpec = LLAMA, **changes: Any) -> Block:
    tp = 4 if "tp4" in name else 1
    split = name.endswith("_sp")
    return Block(
        library="megatron",
        name=name,
        table=table,
        model=model,
        tp=tp,
        sequence_parallel=split,
        unfused=not name.startswith(("flash", "lora")),
        **changes,
    )


def transformers(name: str, table: str, model: ModelSpec = LLAMA, **changes: Any) -> Block:
    unfused = "eager" in name
    return Block(
        library="transformers", name=name, table=table, model=model, unfused=unfused, **changes
    )


def torchtitan(kind: str, way: str, policy: str) -> Block:
    compiled = way.startswith("compiled")
    profiles = ("2024-eager", "2025") if kind == "separate" else ("eager", "current")
    suffix = "_compiled" * compiled or "_cuda" * (way != "unfused_norms")
    return Block(
        library="torchtitan",
        name=f"{kind} {way} {policy}",
        table=f"torchtitan{suffix}",
        model=TITAN_MODELS.get(kind, LLAMA),
        tp=4 if "tp4" in way else 1,
        ep=4 if "ep" in way else 1,
        sequence_parallel="tp4" in way,
        selective=profiles[compiled] if policy else "",
    )


BLOCKS = (
    transformers("llama_sdpa", "transformers_sdpa"),
    transformers("llama_eager", "transformers_eager"),
    transformers("mixtral_sdpa", "transformers_sdpa", MIXTURE),
    transformers("starcoder2_sdpa", "transformers_sdpa", STARCODER2),
    transformers("gpt2_sdpa", "transformers_gpt2", GPT2),
    transformers("gpt2_eager", "transformers_gpt2", GPT2),
    transformers("gpt2_eager_dropout", "transformers_gpt2", GPT2, dropout=True),
    *(torchtitan(*case) for case in sizes.TITAN),
    megatron("gpt", "classic", GPT, dropout=True),
    megatron("gpt_tp4", "classic", GPT, dropout=True),
    megatron("gpt_tp4_sp", "classic", GPT, dropout=True),
    megatron("unfused", "megatron_local"),
    megatron("unfused_tp4", "megatron_local"),
    megatron("unfused_tp4_sp", "megatron_local"),
    megatron("unfused_dropout", "megatron_local", dropout=True),
    megatron("unfused_gpt", "megatron_local", GPT, dropout=True),
    megatron("unfused_moe", "megatron_local", MIXTURE),
    megatron("unfused_moe_tp4_sp", "megatron_local", MIXTURE),
    megatron("flash", "transformer_engine"),
    megatron("flash_tp4", "transformer_engine"),
    megatron("flash_tp4_sp", "transformer_engine"),
    megatron("flash_moe", "transformer_engine", MIXTURE, router="classic"),
    megatron("flash_moe_tp4_sp", "transformer_engine", MIXTURE, router="classic"),
    megatron("flash_latent", "transformer_engine", LATENT),
    megatron("flash_gpt", "transformer_engine", GPT),
    megatron("lora_qkv", "transformer_engine", targets=QKV),
    megatron("lora_qkv_tp4_sp", "transformer_engine", targets=QKV),
    megatron("lora_all", "transformer_engine", targets=TARGETS),
    megatron("lora_all_tp4", "transformer_engine", targets=TARGETS),
    megatron("lora_all_tp4_sp", "transformer_engine", targets=TARGETS),
    megatron("lora_all_gpt", "transformer_engine", GPT, targets=TARGETS),
)
LOSSES = {
    ("transformers", "causal_lm"): "eager_fp32",
    ("torchtitan", "cross_entropy"): "eager_fp32",
    ("torchtitan", "loss_parallel"): "loss_parallel",
}


@dataclass(frozen=True, kw_only=True)
class Kept:
    """A tensor the planner counts."""

    name: str
    part: str
    num_elements: int
    element_bytes: int


@pytest.fixture(scope="session")
def measured(megatron_path: Path) -> Callable[[str], Measured]:
    programs = {
        "transformers": ("saved_blocks.py", "transformers"),
        "torchtitan": ("saved_blocks.py", "torchtitan"),
        "megatron": ("megatron_layer.py", str(megatron_path)),
    }
    found: dict[str, Measured] = {}

    def ask(library: str) -> Measured:
        if library not in found:
            found[library] = sizes.ask(*programs[library])
        return found[library]

    return ask


def tables(block: Block) -> SavedTables:
    found = load_saved_tables(block.table, "compiled")
    if not block.router:
        return found
    router = load_saved_tables(block.router, "compiled").entries("router")
    return replace(found, sections=MappingProxyType({**found.sections, "router": router}))


def ops_of(block: Block) -> tuple[Op, ...]:
    """The planner's ops for one layer of the block."""
    traits = load_traits(*(("torchtitan", block.selective) if block.selective else ("accelerate",)))
    kernels = replace(
        traits.kernels,
        saved=tables(block),
        attention="unfused" if block.unfused else "flash2",
        dropout=block.dropout,
        adapters="megatron",
        gathers_expert_pairs=block.library == "megatron",  # behind the router
    )
    shape = LayerShape(
        micro_batch=np.array([float(sizes.MICRO_BATCH)]),
        seq_len=sizes.SEQ_LEN,
        tp=np.array([block.tp]),
        cp=np.array([1]),
        ep=np.array([block.ep]),
        etp=np.array([block.tp]),
        sequence_parallel=np.array([int(block.sequence_parallel)]),
    )
    traits = replace(traits, kernels=kernels)
    if block.targets:
        training = Training(mode="lora", rank=sizes.RANK, targets=block.targets)
        traits = with_training(traits, training)
    (group,) = layer_groups(block.model, shape, traits)
    return group.ops


def kept_tensor(tensor: SavedTensor) -> Kept:
    elements = float((tensor.rows * tensor.width * tensor.count).item())
    assert elements == int(elements), tensor
    assert tensor.element_bytes == int(tensor.element_bytes), tensor
    op = tensor.name.rpartition(".")[0]
    return Kept(
        name=tensor.name,
        part="attention" if op in ATTENTION_OPS.split() else "mlp",
        num_elements=int(elements),
        element_bytes=int(tensor.element_bytes),
    )


def planned(block: Block) -> list[Kept]:
    """Tensors the planner counts."""
    kept = (kept_tensor(one) for op in ops_of(block) for one in tensors_of(op, block))
    return [one for one in kept if one.num_elements]


def tensors_of(op: Op, block: Block) -> tuple[SavedTensor, ...]:
    return op.kept if block.selective else op.saved


def left_out(storage: SavedStorage) -> str:
    """Why the tables do not count a storage; empty if they must."""
    if storage.shape[1:3] == [1, 1]:
        return "rotary table of a layer, whatever the micro-batch"
    if storage.shape[-1] == 1 and (
        storage.num_elements <= sizes.NUM_TOKENS or len(storage.shape) > 3
    ):
        return "one number per token or head: statistics of a norm, sum of a token's weights"
    if storage.shape in ([sizes.NUM_EXPERTS], [1, sizes.NUM_EXPERTS]):
        return "one number per expert"
    if sorted(storage.shape) == [sizes.NUM_EXPERTS, sizes.HIDDEN]:
        return "the router's weights in fp32, whatever the micro-batch"
    return ""


def matched_in_order(
    counts: tuple[int, ...], storages: list[SavedStorage], kept: list[Kept]
) -> tuple[list[SavedStorage], list[Kept]]:
    """Match storages to so many tensors of one op at a time; return what is left of both."""
    tensors = list(kept)
    for count in counts:
        unmatched = []
        for storage in storages:
            alike = [
                one
                for one in tensors
                if one.element_bytes == storage.element_bytes and storage.part in ("", one.part)
            ]
            fitting = (
                some
                for some in combinations(alike, count)
                if sum(one.num_elements for one in some) == storage.num_elements
                and len({one.name.rpartition(".")[0] for one in some}) == 1
            )
            chosen = next(fitting, None)
            if chosen is None:
                unmatched.append(storage)
            else:
                tensors = [one for one in tensors if one not in chosen]
        storages = unmatched
    return storages, tensors


def matched_by_size(
    storages: list[SavedStorage], kept: list[Kept]
) -> tuple[list[SavedStorage], list[Kept]]:
    """The same, the largest storage first, with as few tensors as are as large."""
    missing = []
    for storage in sorted(storages, key=lambda one: one.num_elements, reverse=True):
        left = [storage]
        for count in (1, 2, 3):
            left, kept = matched_in_order((count,), left, kept)
        missing += left
    return missing, kept


def match(storages: list[SavedStorage], kept: list[Kept]) -> tuple[list[SavedStorage], list[Kept]]:
    """What is left of storages and tensors under the best of three orders.

    Sizes alone leave a choice where a query is as wide as another tensor: single tensors first
    could take one that a fused storage needs.
    """
    orders = ((1, 2, 3), (3, 2, 1))
    results = [matched_in_order(order, storages, kept) for order in orders]
    results.append(matched_by_size(storages, kept))
    return min(results, key=lambda left: len(left[0]) + len(left[1]))


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_every_storage_a_layer_keeps_is_a_tensor_of_the_planner(
    block: Block, measured: Callable[[str], Measured]
) -> None:
    storages = measured(block.library).blocks[block.name]
    counted = [storage for storage in storages if not left_out(storage)]
    missing, invented = match(counted, planned(block))
    assert not missing, "kept by the layer, unknown to the planner"
    assert not invented, "counted by the planner, not kept by the layer"


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_a_layer_keeps_the_planners_bytes_within_one_percent(
    block: Block, measured: Callable[[str], Measured]
) -> None:
    storages = measured(block.library).blocks[block.name]
    total = sum(one.num_bytes for one in storages if "rotary" not in left_out(one))
    kept = (one for op in ops_of(block) for one in tensors_of(op, block))
    counted = sum(float(one.num_bytes.item()) for one in kept)
    assert counted == pytest.approx(total, rel=0.01)


@pytest.mark.parametrize(("library", "name"), LOSSES, ids=[f"{a}-{b}" for a, b in LOSSES])
def test_a_loss_holds_the_planners_bytes_per_logit_at_its_peak(
    library: str, name: str, measured: Callable[[str], Measured]
) -> None:
    entries = load_saved_tables("torchtitan", LOSSES[library, name]).entries("loss")
    live = [one for one in entries if not one.is_freed]
    assert measured(library).losses[name] == sum(one.element_bytes for one in live)


def test_the_compiled_loss_keeps_the_logits_and_their_gradient_is_as_large(
    measured: Callable[[str], Measured],
) -> None:
    # 16-bit logits are kept, the fp32 softmax is rebuilt; backward writes a 16-bit gradient: 2 + 2.
    storages = measured("torchtitan").blocks["compiled_loss"]
    (logits,) = [one for one in storages if one.num_elements == sizes.NUM_TOKENS * sizes.VOCAB]
    entries = load_saved_tables("torchtitan", "compiled").entries("loss")
    assert 2 * logits.element_bytes == sum(one.element_bytes for one in entries)
