"""Which function computes each item of an estimate, and which inputs it reads.

Formula, units, source and exclusions are the function's own docstring; docs/formulas.md is
generated from this table.
"""

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from planner.collectives.cost import busbw_factor
from planner.collectives.fitted import fitted_s
from planner.collectives.ring import ring_s
from planner.cost import (
    buffers,
    build,
    collectives,
    data_parallel,
    domain,
    kernels,
    layer_times,
    memory,
    offload,
    overlap,
    pipeline,
    policies,
    stage,
    stalls,
    weight_gradient,
)
from planner.cost.context import Context
from planner.layers import attention, block, mlp
from planner.schedules import dualpipe, gpipe, interleaved, one_f_one_b, zero_bubble
from planner.spec.strategy import Strategy


@dataclass(frozen=True, kw_only=True)
class Term:
    """One item (or family of items, by prefix), its formulas and its inputs."""

    prefix: str
    functions: tuple[Callable[..., Any], ...] = ()
    inputs: tuple[str, ...] = ()
    """Dotted paths such as strategy.tp or traits.states.weight_bytes."""
    text: str = ""
    """What it is, where no single function says so."""


_RING = (collectives.collective_s, domain.domain_s, fitted_s, ring_s, busbw_factor)
_SCALE_UP = ("node.scale_up.bytes_per_s", "node.scale_up.efficiency_fraction")
_FABRIC = ("cluster.fabric.bytes_per_s", "cluster.fabric.efficiency_fraction")
_HBM = ("accelerator.hbm_bytes_per_s", "accelerator.memory_bound_fraction")
_SHAPE = ("strategy.micro_batch", "job.seq_len", "model.hidden_size", "strategy.tp")

TERMS: tuple[Term, ...] = (
    Term(
        prefix="time.compute",
        text="Kernels of the slowest stage. Sum over its items: seconds per layer and "
        "micro-batch, forward and backward, times layers and micro-batches; embedding and head "
        "once per micro-batch on the stages that have them. Excludes what is recomputed.",
        functions=(stage.stage_time_s,),
        inputs=("strategy.layers_per_stage", "strategy.num_micro_batches"),
    ),
    Term(
        prefix="time.compute.launch",
        text="What launching a mixture layer's kernels takes beyond running them. "
        "max(0, launch seconds - kernel seconds), per layer and pass.",
        inputs=("traits.kernels.moe_launch_forward_s", "traits.kernels.moe_launch_backward_s"),
    ),
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
        functions=(
            attention.tp_entry_comms,
            attention.tp_exit_comms,
            mlp.expert_split_comms,
            overlap.exposed_tensor_parallel_s,
            *_RING,
        ),
        inputs=(
            "strategy.tp",
            "strategy.etp",
            *_SCALE_UP,
            "traits.overlap.tensor_parallel_overlap",
        ),
    ),
    Term(
        prefix="time.context_parallel",
        functions=(attention.core_op, *_RING),
        inputs=("strategy.cp", *_SCALE_UP, *_FABRIC),
    ),
    Term(
        prefix="time.expert_parallel",
        functions=(mlp.exchange_op, overlap.exposed_all_to_all_s, *_RING),
        inputs=(
            "strategy.ep",
            *_SCALE_UP,
            *_FABRIC,
            "traits.overlap.expert_all_to_all_overlap",
            "traits.kernels.deduplicated_dispatch",
        ),
    ),
    Term(
        prefix="time.recompute",
        functions=(stage.stage_time_s,),
        inputs=("strategy.recompute_layers_per_stage", "strategy.selective_layers_per_stage"),
    ),
    Term(
        prefix="time.pipeline",
        text="What pipelining costs the slowest stage. bubble + p2p: waiting for other stages, and "
        "transfers between stages that are not hidden.",
        functions=(one_f_one_b.makespan_s, interleaved.makespan_s, build.link_seconds),
        inputs=("strategy.pp", "strategy.vpp", "strategy.num_micro_batches"),
    ),
    Term(
        prefix="time.pipeline.bubble",
        functions=(
            pipeline.makespan_s,
            one_f_one_b.makespan_s,
            interleaved.makespan_s,
            gpipe.makespan_s,
            zero_bubble.bubble_h_s,
            zero_bubble.bubble_v_s,
            dualpipe.bubble_s,
            pipeline.bubble_filled_s,
            weight_gradient.layer_weight_gradient_s,
        ),
        inputs=(
            "strategy.schedule",
            "strategy.pp",
            "strategy.vpp",
            "strategy.num_micro_batches",
            "traits.overlap.optimizer_waits_for_all_stages",
        ),
    ),
    Term(
        prefix="time.pipeline.p2p",
        functions=(build.link_seconds, build.exposed_link_s, collectives.point_to_point_s),
        inputs=(
            "strategy.pp",
            "strategy.vpp",
            "traits.overlap.pipeline_p2p_overlap",
            *_FABRIC,
        ),
    ),
    Term(
        prefix="time.data_parallel",
        functions=(
            build.reduction_pieces,
            overlap.bucket_pieces,
            overlap.interference_fraction,
            data_parallel.bucket_elements,
            data_parallel.data_parallel_costs,
            *_RING,
        ),
        inputs=(
            "strategy.dp",
            "strategy.zero_stage",
            "traits.states.gradient_reduce_bytes",
            "traits.overlap.overlaps_gradient_reduction",
            "traits.overlap.overlaps_parameter_gather",
            "traits.overlap.gradient_bucket_elements",
            "traits.overlap.gradient_bucket_elements_per_rank",
            "traits.overlap.communication_multiprocessors",
            *_FABRIC,
        ),
    ),
    Term(
        prefix="time.sharding",
        functions=(
            layer_times.layer_times,
            overlap.exposed_beside_s,
            overlap.prefetch_fill_s,
            overlap.interference_fraction,
            data_parallel.data_parallel_costs,
        ),
        inputs=("strategy.dp", "traits.overlap.communication_multiprocessors", *_FABRIC),
    ),
    Term(
        prefix="time.synchronisation",
        functions=(stalls.synchronisation_factor,),
        inputs=("traits.overheads.speed_variation_fraction",),
    ),
    Term(
        prefix="time.gradient_passes",
        functions=(stalls.gradient_pass_s, build.gradient_pass_s_per_param),
        inputs=(
            "traits.overheads.held_gradient_pass_bytes",
            "traits.overheads.owned_gradient_pass_bytes",
            *_HBM,
        ),
    ),
    Term(
        prefix="time.optimizer_step",
        functions=(
            build.optimizer_s_per_param,
            offload.host_optimizer_s,
            offload.host_adam_s,
            offload.nvme_optimizer_s,
        ),
        inputs=(
            "strategy.offload",
            "strategy.offload_percent",
            "traits.offload.host_optimizer_params_per_s",
            "traits.offload.host_optimizer_shares_node",
            "traits.optimizer.step_traffic_bytes",
            *_HBM,
        ),
    ),
    Term(
        prefix="time.offload",
        functions=(offload.parameter_fetch_s, offload.host_transfer_s),
        inputs=("strategy.offload", "node.host_link_bytes_per_s"),
    ),
    Term(
        prefix="time.offload.gradients",
        functions=(
            build.gradient_offload_s,
            offload.exposed_gradient_offload_s,
            offload.host_transfer_s,
        ),
        inputs=(
            "strategy.offload",
            "strategy.offload_percent",
            "traits.offload.gradient_passes_per_micro_batch",
            "node.host_link_bytes_per_s",
        ),
    ),
    Term(
        prefix="time.offload.activations",
        functions=(
            policies.policy_costs,
            policies.activation_transfer_s,
            offload.host_transfer_s,
        ),
        inputs=(
            "strategy.offloaded_layers_per_stage",
            "traits.support.activation_offload",
            "node.host_link_bytes_per_s",
        ),
    ),
    Term(
        prefix="time.tied_embedding",
        functions=(build.tied_embedding_s,),
        inputs=("model.tied_embeddings", "model.vocab_size", "strategy.pp"),
    ),
    Term(
        prefix="time.step_overhead",
        text="Seconds per iteration that belong to no other item. A constant of the framework "
        "profile: gradient norm and loss-scale checks, data loading, logging.",
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
            "strategy.offload_percent",
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
        functions=(
            stage.stage_held_bytes,
            one_f_one_b.in_flight,
            interleaved.in_flight,
            gpipe.in_flight,
            zero_bubble.in_flight,
            dualpipe.in_flight,
        ),
        inputs=("strategy.schedule", "strategy.pp", "strategy.vpp", "strategy.layers_per_stage"),
    ),
    Term(
        prefix="memory.transient",
        functions=(stage.transient_bytes, block.head_op, buffers.transient_layer_bytes),
        inputs=("model.vocab_size", "traits.kernels.loss"),
    ),
    Term(
        prefix="memory.transient.offload_buffers",
        functions=(buffers.offload_buffer_bytes, stage.transient_bytes),
        inputs=(*_SHAPE, "strategy.offloaded_layers_per_stage"),
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


def functions_for(term: Term, strategy: Strategy) -> list[Callable[..., Any]]:
    """The functions of a term that price this strategy: those of other schedules left out."""
    own = pipeline.FORMULAS[strategy.schedule]
    of_schedules = {function for formulas in pipeline.FORMULAS.values() for function in formulas}
    return [
        function for function in term.functions if function in own or function not in of_schedules
    ]


def formula_of(function: Callable[..., Any]) -> str:
    """A function's docstring, one line per paragraph."""
    paragraphs = (inspect.getdoc(function) or "").split("\n\n")
    text = "\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    return re.sub(r":\w+:`([\w.]+)`", r"\1", text).replace("``", "")


def summary_of(term: Term) -> str:
    """First sentence of what a term is or of its main formula."""
    if term.text:
        return term.text.partition(". ")[0]
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
