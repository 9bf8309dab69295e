"""Runtime settings that recipes and published runs state, as settings of traits."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from planner.cost.launches import HOST_SHARES
from planner.spec.traits import FrameworkTraits, Setting

DEDUPLICATING = ("deepep", "hybridep", "flex")
"""Expert dispatchers that send a token once to each remote domain."""
PERMUTING = "hybridep"
"""The dispatcher whose own kernels sort tokens: hybrid_ep_dispatch in Megatron-LM's
megatron/core/transformer/moe/fused_a2a.py; DeepEP's are followed by Transformer Engine's."""
FULL_GRAPH = "full_iteration"
GRAPH_SHARES = {
    "attn": HOST_SHARES["attention"],
    "moe_router": HOST_SHARES["router"] / 2.0,
    "moe_preprocess": HOST_SHARES["router"] / 2.0,
}
"""Of a mixture layer's kernels, by what --cuda-graph-scope captures."""

IN_8_BIT = {"attention": "kernels.attention_in_8_bit", "head": "kernels.head_in_8_bit"}
"""Traits of what a recipe also computes in its 8 bits (fp8_dot_product_attention and
fp8_output_proj of Megatron-Bridge)."""


def captured_fraction(scopes: Iterable[str]) -> float:
    """Share of a mixture layer's launches inside the CUDA graphs of these scopes."""
    parts = tuple(scopes)
    if FULL_GRAPH in parts:
        return 1.0
    return sum(GRAPH_SHARES.get(part, 0.0) for part in parts)


def capacity_settings(factor: float, *, pads: bool) -> tuple[Setting, ...]:
    """Traits of experts with a capacity, padded to it or not."""
    return ("kernels.expert_capacity_factor", factor), ("kernels.pads_to_capacity", pads)


def runtime_settings(
    *,
    graphs: Iterable[str],
    dispatcher: str | None,
    expert_overlap: bool | None,
    tp_overlap: bool | None = None,
    launch_blocking: bool = False,
    in_8_bit: Iterable[str] = (),
    capacity: tuple[float, bool] | None = None,
) -> tuple[Setting, ...]:
    """Traits that differ from the profile's; what is None (a dispatcher: empty) is left to it.

    ``capacity``: the factor, and whether experts are padded to it.
    """
    settings: list[Setting] = []
    if captured := captured_fraction(graphs):
        settings.append(("kernels.cuda_graph_fraction", captured))
    if captured == 1.0:
        settings.append(("kernels.fused_experts", True))
        settings.append(("kernels.stashes_experts", True))
    if dispatcher:
        settings.append(("kernels.deduplicated_dispatch", dispatcher in DEDUPLICATING))
        settings.append(("kernels.dispatch_permutes", dispatcher == PERMUTING))
    if expert_overlap is not None:
        given = "batches" if expert_overlap else "none"
        settings.append(("overlap.expert_all_to_all_overlap", given))
    if tp_overlap is not None:
        settings.append(("overlap.tensor_parallel_overlap", "ring" if tp_overlap else "none"))
    if launch_blocking:
        settings.append(("kernels.waits_for_kernels", True))
    settings += [(IN_8_BIT[each], True) for each in in_8_bit]
    if capacity:
        settings += capacity_settings(capacity[0], pads=capacity[1])
    return tuple(settings)


def with_settings(traits: FrameworkTraits, settings: Sequence[Setting]) -> FrameworkTraits:
    """The traits with settings laid over them."""
    for path, value in settings:
        section, _, name = path.partition(".")
        part = replace(getattr(traits, section), **{name: value})
        traits = replace(traits, **{section: part})
    return traits
