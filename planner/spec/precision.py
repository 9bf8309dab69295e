"""Traits of a framework under a training precision."""

from dataclasses import replace

from planner.spec.job import FULL_PRECISIONS, Precision, element_bytes
from planner.spec.traits import FrameworkTraits


def traits_at_precision(traits: FrameworkTraits, precision: Precision) -> FrameworkTraits:
    """Traits in a training precision, which those given already may be under.

    Under fp8 linear layers keep quantised inputs. In 32 bits weights, gradients and kept
    activations take 4 bytes an element where they took 2, and the weights are their own master.
    """
    if precision in ("bf16", "fp16"):
        return traits
    kernels = traits.kernels
    if precision not in FULL_PRECISIONS:
        saved = kernels.saved.with_linear_input_bytes(kernels.fp8_linear_input_bytes)
        return replace(traits, kernels=replace(kernels, saved=saved))
    states, offload = traits.states, traits.offload
    return replace(
        traits,
        kernels=replace(kernels, saved=kernels.saved.in_32_bits()),
        states=replace(
            states,
            weight_bytes=traits_at_fp32(states.weight_bytes),
            zero3_weight_bytes=traits_at_fp32(states.zero3_weight_bytes),
            zero3_secondary_weight_bytes=traits_at_fp32(states.zero3_secondary_weight_bytes),
            master_weight_bytes=0.0,
            gradient_bytes=element_bytes("fp32"),
            gradient_reduce_bytes=traits_at_fp32(states.gradient_reduce_bytes),
            zero2_gradient_bytes=traits_at_fp32(states.zero2_gradient_bytes),
            whole_tensor_gradient_bytes=traits_at_fp32(states.whole_tensor_gradient_bytes),
            accumulated_gradient_bytes=traits_at_fp32(states.accumulated_gradient_bytes),
            collected_head_gradient_bytes=traits_at_fp32(states.collected_head_gradient_bytes),
            unsharded_gradient_copy_bytes=0.0,
            replica_bucket_bytes=traits_at_fp32(states.replica_bucket_bytes),
            sharded_gradient_bytes=states.fp32_shard_bytes,
            sharded_copies="weights",
            largest_gradient_copy_bytes=0.0,
        ),
        offload=replace(
            offload,
            step_returned_bytes=traits_at_fp32(offload.step_returned_bytes),
            fetched_weight_bytes=traits_at_fp32(offload.fetched_weight_bytes),
        ),
    )


def traits_at_fp32(num_bytes: float) -> float:
    """Bytes an element of what has 16 bits, or 32, where all has 32; 0 where it is not there."""
    return max(num_bytes, element_bytes("fp32")) if num_bytes else 0.0
