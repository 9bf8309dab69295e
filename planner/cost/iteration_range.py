"""How far an iteration's time may be off: machines that differ, and published runs like it."""

from collections.abc import Sequence
from dataclasses import replace

from planner.cost.context import Context
from planner.cost.subject import iteration_of, subjects_of
from planner.spec.strategy import Strategy
from planner.spec.time_range import RunClass

Ends = tuple[float, float]


def class_of(context: Context, strategy: Strategy) -> RunClass:
    """Published runs that a plan is like: of KINDS the first that holds, and where it runs.

    A job on one node knows no network, and is often bound by the host that launches its kernels.
    """
    kind = context.model.kind
    if context.traits.training.is_frozen:
        kind = "frozen"
    elif strategy.offload != "none":
        kind = "offload"
    fits_one = strategy.num_gpus <= context.cluster.node.num_accelerators
    return kind, "one node" if fits_one else "several nodes"


def machine_ends_s(context: Context, strategies: Sequence[Strategy]) -> dict[int, Ends]:
    """Iterations on the fastest and the slowest machine that published figures allow, by position.

    Machines differ in what their matrix products sustain (where the accelerator states a range) and
    in what an optimizer's step on the host reaches. Strategies that neither concerns are left out.
    """
    traits, gemm = context.traits.offload, context.cluster.accelerator.gemm
    places = [
        place
        for place, strategy in enumerate(strategies)
        if gemm.has_range or "optimizer" in strategy.offload
    ]
    concerned = [strategies[place] for place in places]
    fast, slow = (
        [iteration_of(one) for one in subjects_of(machine, concerned)]
        for machine in (
            _machine(context, gemm.fastest, traits.host_optimizer_fastest_factor),
            _machine(context, gemm.slowest, traits.host_optimizer_slowest_factor),
        )
    )
    return dict(zip(places, zip(fast, slow, strict=True), strict=True))


def _machine(context: Context, sustained_fraction: float, host_factor: float) -> Context:
    return with_products(with_host_rate(context, host_factor), sustained_fraction)


def with_products(context: Context, sustained_fraction: float) -> Context:
    """The context whose matrix products sustain that fraction of peak."""
    accelerator = context.cluster.accelerator
    gemm = replace(accelerator.gemm, sustained_fraction=sustained_fraction)
    node = replace(context.cluster.node, accelerator=replace(accelerator, gemm=gemm))
    return replace(context, cluster=replace(context.cluster, node=node))


def with_host_rate(context: Context, factor: float) -> Context:
    """The context whose hosts update so many times the parameters per second."""
    traits, num_bytes = context.traits, context.traits.offload.host_step_bytes
    offload = replace(traits.offload, host_step_bytes=num_bytes / factor)
    return replace(context, traits=replace(traits, offload=offload))
