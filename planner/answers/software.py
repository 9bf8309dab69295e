"""Software assumptions of a plan, in words: one phrase per topic, from the framework's traits.

A new topic has a phrase, and says in :data:`TOPICS` where it matters.
"""

from collections.abc import Callable, Iterable, Mapping

from planner.cost.context import Context
from planner.documents.tree import load_own
from planner.frameworks.registry import CURRENT, load_traits, profile_names, profile_title
from planner.spec.strategy import Strategy
from planner.spec.traits import FrameworkTraits, KernelTraits, StateTraits

# By topic: what a value of its trait says.
WORDS: Mapping[str, Mapping[str, str]] = load_own(__package__, "software.yaml")


def _overlapped(overlaps: object) -> str:
    return "overlapped" if overlaps else "not overlapped"


def _width(num_bytes: float) -> str:
    return "fp32" if num_bytes == 4 else f"{8 * num_bytes:g} bits"


def _launch(kernels: KernelTraits) -> str:
    graphs = kernels.cuda_graph_fraction
    launch_s = sum(kernels.moe_launch_s) * (1.0 - graphs)
    if not launch_s:
        return "no time to launch mixture layers"
    share = f"CUDA graphs for {graphs:.0%} of launches" if graphs else "no CUDA graphs"
    return f"{share} (at least {launch_s * 1e3:g} ms a mixture layer)"


def _kernel_phrases(kernels: KernelTraits) -> dict[str, str]:
    layers = kernels.saved.name
    once = "dispatcher sending a token once per domain"
    dispatcher = once if kernels.dispatcher != "alltoall" else "all-to-all dispatcher"
    if kernels.dispatcher == "hybridep":
        dispatcher += ", sorted in its own kernels"
    context = "exchanged all-to-all" if kernels.exchanges_context else "passed round a ring"
    return {
        "layers": WORDS["layers"].get(layers, layers),
        "attention": WORDS["attention"][kernels.attention],
        "dropout": "dropout" if kernels.dropout else "no dropout",
        "loss": WORDS["loss"].get(kernels.loss, kernels.loss),
        "context_parallel": f"context {context}",
        "dispatcher": dispatcher,
        "host": f"kernels launched in {kernels.launch_s * 1e6:g} us each",
        "launch": _launch(kernels),
    }


def _state_phrases(states: StateTraits) -> dict[str, str]:
    """What is said of widths and copies; nothing where a framework keeps no such copy."""
    width, kept = _width(states.zero2_gradient_bytes), "gradients kept whole between micro-batches"
    said = {
        "states": (
            "weights and states of 16 bits, no master copy",
            states.optimizer_state_fraction < 1 and not states.master_weight_bytes,
        ),
        "sharded_gradients": (
            f"sharded gradients kept and reduced in {width} (overlapped)",
            states.zero2_gradient_bytes,
        ),
        "accumulation": (kept, states.accumulated_gradient_bytes),
        "weight_shards": (
            (
                f"weights cut over {states.weight_shards:g} further ranks, "
                f"experts over {states.expert_weight_shards:g}"
            ),
            states.cuts_weights,
        ),
        "secondary_shards": ("ZeRO++ shards per node", states.zero3_secondary_weight_bytes),
    }
    return {name: text for name, (text, holds) in said.items() if holds}


def phrases(traits: FrameworkTraits) -> dict[str, str]:
    """Return what is assumed, by topic, in the order of TOPICS."""
    overlap, width = traits.overlap, _width(traits.states.gradient_reduce_bytes)
    when = "after all stages" if overlap.optimizer_waits_for_all_stages else "stage by stage"
    reduced = _overlapped(overlap.overlaps_gradient_reduction)
    said = {
        **_kernel_phrases(traits.kernels),
        **_state_phrases(traits.states),
        "gradient_reduction": f"gradients reduced in {width} ({reduced})",
        "weight_gather": f"weights gathered ({_overlapped(overlap.overlaps_parameter_gather)})",
        "tensor_parallel": WORDS["tensor_parallel"][overlap.tensor_parallel_overlap],
        "pipeline_transfers": WORDS["pipeline_transfers"][overlap.pipeline_p2p_overlap],
        "optimizer_step": f"optimizer steps {when}",
        "expert_all_to_all": WORDS["expert_all_to_all"][overlap.expert_all_to_all_overlap],
        "policies": WORDS["policies"][traits.support.policy_scope],
    }
    return {name: said[name] for name in TOPICS if name in said}


def _sharded(context: Context, strategy: Strategy) -> bool:
    """Return True if gradients have a separate width because they are sharded."""
    return strategy.zero_stage > 1 and bool(context.traits.states.zero2_gradient_bytes)


# Whether a plan's numbers depend on what is said of a topic.
TOPICS: Mapping[str, Callable[[Context, Strategy], bool]] = {
    **dict.fromkeys(
        ("layers", "states", "weight_shards", "attention", "dropout", "loss"), lambda *_: True
    ),
    "gradient_reduction": lambda c, s: (s.dp > 1 or s.cp > 1) and not _sharded(c, s),
    "sharded_gradients": _sharded,
    "accumulation": lambda _, s: s.zero_stage > 1 and s.num_micro_batches > 1,
    "weight_gather": lambda _, s: s.zero_stage in (1, 2),
    "secondary_shards": lambda _, s: s.zero_stage == 3,
    "tensor_parallel": lambda _, s: s.tp > 1,
    "pipeline_transfers": lambda _, s: s.pp > 1,
    "optimizer_step": lambda _, s: s.pp > 1,
    "context_parallel": lambda _, s: s.cp > 1,
    "expert_all_to_all": lambda _, s: s.ep > 1,
    "dispatcher": lambda _, s: s.ep > 1,
    **dict.fromkeys(("policies", "host"), lambda *_: False),
    "launch": lambda c, _: c.model.moe is not None,
}


def shown_value(value: object) -> str:
    """Return a trait's value as ``--set`` takes it."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(shown_value, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def assumptions_line(context: Context, strategies: Iterable[Strategy]) -> str:
    """Return what some plans assume about their software, and how to change it."""
    traits, used = context.traits, tuple(strategies)
    matter = [
        text
        for topic, text in phrases(traits).items()
        if any(TOPICS[topic](context, strategy) for strategy in used)
    ]
    versions = profile_title(traits.name, traits.profile).versions
    shown = ", ".join(f"traits.{path}={shown_value(value)}" for path, value in traits.settings)
    settings = f"; set {shown}" if shown else ""
    # Five are named; all stand in ``planner show frameworks``.
    others = [name for name in profile_names(traits.name) if name != traits.profile]
    more = f", {len(others) - 5} more" if len(others) > 5 else ""
    profiles = f" ({', '.join(others[:5])}{more})" if others else ""
    return (
        f"assumes {traits.name} {traits.profile}: {versions}{settings}; "
        f"{', '.join(matter)}. Change with --profile{profiles} or --set "
        "traits.SECTION.KEY=VALUE (`planner show frameworks`)."
    )


def differences(framework: str, profile: str) -> list[str]:
    """Return what a profile says otherwise than the framework's current one, or does not say."""
    usual = phrases(load_traits(framework, CURRENT))
    own = phrases(load_traits(framework, profile))
    changed = [text for name, text in own.items() if usual.get(name) != text]
    lacking = [text for name, text in usual.items() if name not in own]
    return changed + [f"without {text}" for text in lacking]
