"""Which function computes each item of an estimate, and which inputs it reads.

Formula, units, source and exclusions are the function's own docstring; docs/formulas.md is
generated from this table.
"""

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from planner.cost import buffers, build, collectives, data_parallel, kernels, memory, offload, stage
from planner.cost.context import Context
from planner.layers import attention, block, mlp
from planner.schedules import interleaved, one_f_one_b
from planner.spec.strategy import Strategy


@dataclass(frozen=True, kw_only=True)
class Term:
    """One item (or family of items, by prefix), its formulas and its inputs."""

    prefix: str
    functions: tuple[Callable[..., Any], ...]
    inputs: tuple[str, ...] = ()
    """Dotted paths such as strategy.tp or traits.states.weight_bytes."""


_RING = (collectives.collective_s, collectives.ring_s, collectives.busbw_factor)
_SCALE_UP = ("node.scale_up.bytes_per_s", "node.scale_up.efficiency_fraction")
_FABRIC = ("cluster.fabric.bytes_per_s", "cluster.fabric.efficiency_fraction")
_HBM = ("accelerator.hbm_bytes_per_s", "accelerator.memory_bound_fraction")
_SHAPE = ("strategy.micro_batch", "job.seq_len", "model.hidden_size", "strategy.tp")

TERMS: tuple[Term, ...] = (
    Term(
        prefix="time.compute.gemm",
        functions=(
            kernels.gemm_s,
            kernels.product_s,
            kernels.cast_s,
            kernels.aligned_fraction,
            kernels.tiled_gemm_flops_s,
            kernels.smooth_gemm_flops_s,
        ),
        inputs=(*_SHAPE, "accelerator.gemm.sustained_fraction", "accelerator.peak_flops_per_s"),
    ),
    Term(
        prefix="time.compute.attention",
        functions=(kernels.flash_attention_forward_s, kernels.flash_attention_backward_s),
        inputs=("traits.kernels.attention", *_SHAPE, "accelerator.attention"),
    ),
    Term(
        prefix="time.compute.memory_bound",
        functions=(kernels.element_wise_s, kernels.memory_bound_s),
        inputs=(*_HBM, "traits.kernels.memory_bound_multiplier"),
    ),
    Term(
        prefix="time.compute.embedding",
        functions=(block.embedding_op, kernels.memory_bound_s),
        inputs=(*_SHAPE, *_HBM),
    ),
    Term(
        prefix="time.compute.head_and_loss",
        functions=(block.head_op, kernels.gemm_s),
        inputs=(*_SHAPE, "model.vocab_size", "traits.kernels.loss_traffic_bytes"),
    ),
    Term(
        prefix="time.tensor_parallel",
        functions=(attention.tp_entry_comms, attention.tp_exit_comms, *_RING),
        inputs=("strategy.tp", *_SCALE_UP, "traits.overlap.tensor_parallel_hidden_fraction"),
    ),
    Term(
        prefix="time.context_parallel",
        functions=(attention.core_op, *_RING),
        inputs=("strategy.cp", *_SCALE_UP, *_FABRIC),
    ),
    Term(
        prefix="time.expert_parallel",
        functions=(mlp.exchange_op, *_RING),
        inputs=("strategy.ep", *_SCALE_UP, *_FABRIC),
    ),
    Term(
        prefix="time.recompute",
        functions=(stage.stage_time_s,),
        inputs=("strategy.recompute_layers_per_stage", "strategy.selective_layers_per_stage"),
    ),
    Term(
        prefix="time.pipeline.bubble",
        functions=(one_f_one_b.makespan_s, interleaved.makespan_s),
        inputs=("strategy.pp", "strategy.vpp", "strategy.num_micro_batches"),
    ),
    Term(
        prefix="time.pipeline.p2p",
        functions=(build.link_seconds, collectives.point_to_point_s),
        inputs=("strategy.pp", "strategy.vpp", *_FABRIC),
    ),
    Term(
        prefix="time.data_parallel",
        functions=(data_parallel.data_parallel_costs, build.tail_pieces, *_RING),
        inputs=(
            "strategy.dp",
            "strategy.zero_stage",
            "traits.states.gradient_reduce_bytes",
            "traits.overlap.data_parallel_hidden_fraction",
            *_FABRIC,
        ),
    ),
    Term(
        prefix="time.sharding",
        functions=(data_parallel.data_parallel_costs, data_parallel.contended_s),
        inputs=("strategy.dp", "traits.overlap.contention_fraction", *_FABRIC),
    ),
    Term(
        prefix="time.optimizer_step",
        functions=(
            build.optimizer_s_per_param,
            offload.host_optimizer_s,
            offload.nvme_optimizer_s,
        ),
        inputs=("strategy.offload", "traits.optimizer.step_traffic_bytes", *_HBM),
    ),
    Term(
        prefix="time.offload",
        functions=(offload.parameter_fetch_s,),
        inputs=("strategy.offload", "node.host_link_bytes_per_s"),
    ),
    Term(
        prefix="time.tied_embedding",
        functions=(build.tied_embedding_s,),
        inputs=("model.tied_embeddings", "model.vocab_size", "strategy.pp"),
    ),
    Term(
        prefix="time.step_overhead",
        functions=(),
        inputs=("traits.overheads.step_overhead_s",),
    ),
    Term(
        prefix="memory.weights",
        functions=(memory.state_bytes,),
        inputs=("strategy.zero_stage", "strategy.dp", "traits.states.weight_bytes"),
    ),
    Term(
        prefix="memory.gradients",
        functions=(memory.state_bytes,),
        inputs=("strategy.zero_stage", "strategy.dp", "traits.states.gradient_bytes"),
    ),
    Term(
        prefix="memory.dummy_weight_gradients",
        functions=(stage.fixed_bytes,),
        inputs=("traits.kernels.dummy_weight_gradient_bytes", "model.hidden_size", "strategy.tp"),
    ),
    Term(
        prefix="memory.optimizer",
        functions=(memory.state_bytes,),
        inputs=(
            "strategy.zero_stage",
            "strategy.dp",
            "strategy.offload",
            "traits.states.master_weight_bytes",
            "traits.optimizer.name",
        ),
    ),
    Term(
        prefix="memory.activations.attention_norm",
        functions=(attention.norm_op,),
        inputs=(*_SHAPE, "traits.kernels.saved.name", "strategy.sequence_parallel"),
    ),
    Term(
        prefix="memory.activations.mlp_norm",
        functions=(attention.norm_op,),
        inputs=(*_SHAPE, "traits.kernels.saved.name", "strategy.sequence_parallel"),
    ),
    Term(
        prefix="memory.activations.qkv",
        functions=(attention.qkv_ops,),
        inputs=(*_SHAPE, "model.num_heads", "model.num_kv_heads", "model.head_dim"),
    ),
    Term(
        prefix="memory.activations.attention_core",
        functions=(attention.core_op,),
        inputs=(*_SHAPE, "traits.kernels.attention", "traits.kernels.dropout"),
    ),
    Term(
        prefix="memory.activations.attention_output",
        functions=(attention.output_op,),
        inputs=_SHAPE,
    ),
    Term(
        prefix="memory.activations.mlp",
        functions=(mlp.dense_ops,),
        inputs=(*_SHAPE, "model.ffn_size", "traits.kernels.saved.name"),
    ),
    Term(
        prefix="memory.activations.expert_activation",
        functions=(mlp.expert_ops,),
        inputs=(*_SHAPE, "model.moe"),
    ),
    Term(
        prefix="memory.activations",
        functions=(stage.stage_held_bytes, one_f_one_b.in_flight, interleaved.in_flight),
        inputs=("strategy.pp", "strategy.vpp", "strategy.layers_per_stage"),
    ),
    Term(
        prefix="memory.transient",
        functions=(stage.transient_bytes, block.head_op, buffers.transient_layer_bytes),
        inputs=("model.vocab_size", "traits.kernels.loss"),
    ),
    Term(
        prefix="memory.overhead.fragmentation",
        functions=(stage.stage_peak_bytes,),
        inputs=("traits.overheads.fragmentation_fraction",),
    ),
    Term(
        prefix="memory.overhead",
        functions=(buffers.overhead_bytes,),
        inputs=("traits.overheads.context_bytes", "traits.overheads.communicator_bytes"),
    ),
    Term(
        prefix="memory.buckets",
        functions=(buffers.bucket_bytes,),
        inputs=("traits.overheads.bucket_elements", "traits.overheads.num_buckets"),
    ),
    Term(
        prefix="memory.gather_buffers",
        functions=(buffers.gather_pool_bytes,),
        inputs=("traits.states.gathers_in_own_stream", "strategy.zero_stage"),
    ),
    Term(
        prefix="memory.dead_blocks",
        functions=(buffers.dead_block_bytes,),
        inputs=("traits.kernels.saved.name",),
    ),
    Term(
        prefix="memory.receive_buffers",
        functions=(buffers.receive_buffer_bytes,),
        inputs=("traits.states.receives_into_own_buffers", "strategy.num_micro_batches"),
    ),
    Term(
        prefix="memory.kept_logits",
        functions=(buffers.kept_logits_bytes,),
        inputs=("traits.states.keeps_stage_outputs", "strategy.num_micro_batches"),
    ),
    Term(
        prefix="memory.largest_gradient",
        functions=(buffers.largest_gradient_bytes, buffers.embedding_gradient_bytes),
        inputs=("model.vocab_size", "traits.states.whole_tensor_gradient_bytes"),
    ),
    Term(
        prefix="memory.workspaces",
        functions=(buffers.workspace_bytes,),
        inputs=(
            "traits.overheads.workspace_bytes",
            "traits.overheads.grouped_gemm_workspace_bytes",
        ),
    ),
)


def term_of(name: str) -> Term | None:
    """The term with the longest prefix of ``name``."""
    matching = [term for term in TERMS if name.startswith(term.prefix)]
    return max(matching, key=lambda term: len(term.prefix), default=None)


def formula_of(function: Callable[..., Any]) -> str:
    """A function's docstring, one line per paragraph."""
    paragraphs = (inspect.getdoc(function) or "").split("\n\n")
    text = "\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    return re.sub(r":func:`(\w+)`", r"\1", text).replace("``", "")


def summary_of(term: Term) -> str:
    """First sentence of a term's main formula; empty when it has none."""
    if not term.functions:
        return ""
    return formula_of(term.functions[0]).split("\n")[0]


def input_value(path: str, context: Context, strategy: Strategy) -> object:
    """Look a dotted input path up."""
    roots: dict[str, Any] = {
        "strategy": strategy,
        "model": context.model,
        "job": context.job,
        "cluster": context.cluster,
        "node": context.cluster.node,
        "accelerator": context.cluster.accelerator,
        "traits": context.traits,
    }
    root, *names = path.split(".")
    value = roots[root]
    for name in names:
        value = getattr(value, name)
    return value


def trait_source(path: str, figures: dict[str, dict[str, Any]]) -> str:
    """Where a trait's value comes from; empty for other inputs."""
    parts = path.split(".")
    if parts[0] != "traits":
        return ""
    if parts[1] == "optimizer":
        return "planner/frameworks/optimizers.yaml"
    return str(figures[parts[1]][parts[2]]["source"])
