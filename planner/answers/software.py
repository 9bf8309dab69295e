"""Software assumptions of a plan, in words: one phrase per topic, from the framework's traits.

A new topic is one line of :data:`TOPICS`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from planner.cost.context import Context
from planner.frameworks.registry import CURRENT, load_traits, profile_names, profile_title
from planner.spec.strategy import Strategy
from planner.spec.traits import FrameworkTraits

ATTENTION: Mapping[str, str] = {
    "fused": "the vendor's fused attention",
    "flash2": "FlashAttention-2",
    "flash_attn": "the package of FlashAttention-2",
    "unfused": "unfused attention",
}
KERNELS: Mapping[str, str] = {
    "classic": "fused kernels of Megatron-LM",
    "megatron_local": "Megatron-Core's local layers",
    "torchtitan": "eager layers",
    "torchtitan_compiled": "compiled layers",
    "torchtitan_cuda": "eager layers",
    "transformer_engine": "Transformer Engine layers",
    "transformers_eager": "eager transformers layers",
    "transformers_gpt2": "eager transformers layers",
    "transformers_sdpa": "eager transformers layers",
}
TRANSFERS: Mapping[str, str] = {
    "none": "pipeline transfers exposed",
    "interleaved": "pipeline transfers overlapped where stages are interleaved",
    "all": "pipeline transfers overlapped",
}
TENSOR_PARALLEL: Mapping[str, str] = {
    "none": "tensor parallelism not overlapped",
    "bulk": "tensor parallelism beside independent products",
    "ring": "tensor parallelism overlapped in chunks",
}
ALL_TO_ALL: Mapping[str, str] = {
    "none": "expert all-to-all not overlapped",
    "shared_expert": "expert all-to-all beside the shared expert",
    "batches": "expert all-to-all beside another micro-batch",
}
# What is searched, and nothing that a plan's numbers depend on.
POLICY_SCOPES: Mapping[str, str] = {
    "model": "one policy for the activations of all layers",
    "chunks": "one policy for the activations of all layers, or for the first of every chunk",
    "layers": "activations of every layer under a policy of their own",
}
LOSSES: Mapping[str, str] = {
    "fused": "fused cross-entropy",
    "compiled": "compiled cross-entropy",
    "flash_attention": "fused cross-entropy of flash-attention",
    "compiled_fp32": "compiled cross-entropy of fp32 logits",
    "eager_fp32": "eager fp32 cross-entropy",
    "eager_fp32_kept": "eager fp32 cross-entropy, its logits kept",
    "eager_fp32_shifted": "eager fp32 cross-entropy of a shifted copy",
    "fused_fp32_shifted": "fused fp32 cross-entropy of a shifted copy",
    "eager_16_bit": "eager cross-entropy of 16-bit logits",
    "loss_parallel": "DTensor loss parallel",
    "vocab_parallel": "vocabulary-parallel cross-entropy",
    "vocab_parallel_kept": "vocabulary-parallel cross-entropy",
    "chunked": "cross-entropy in chunks",
    "liger": "Liger's fused linear cross-entropy",
}


def _attention(traits: FrameworkTraits) -> str:
    rate = traits.kernels.attention_rate_fraction
    slower = f" at {rate:.0%} of its rate" if rate < 1 else ""
    return f"{ATTENTION[traits.kernels.attention]}{slower}"


def _overlap(*, overlaps: bool) -> str:
    return "overlapped" if overlaps else "not overlapped"


def _width(num_bytes: float) -> str:
    return "fp32" if num_bytes == 4 else f"{8 * num_bytes:g} bits"


def _sharded(context: Context, strategy: Strategy) -> bool:
    """Return True if gradients have a separate width because they are sharded."""
    return strategy.zero_stage > 1 and bool(context.traits.states.zero2_gradient_bytes)


def _reduction(traits: FrameworkTraits) -> str:
    width = _width(traits.states.gradient_reduce_bytes)
    overlap = _overlap(overlaps=traits.overlap.overlaps_gradient_reduction)
    return f"gradients reduced in {width} ({overlap})"


def _launch(traits: FrameworkTraits) -> str:
    kernels = traits.kernels
    graphs = kernels.cuda_graph_fraction
    launch_s = (kernels.moe_launch_forward_s + kernels.moe_launch_backward_s) * (1.0 - graphs)
    if not launch_s:
        return "no time to launch mixture layers"
    share = f"CUDA graphs for {graphs:.0%} of launches" if graphs else "no CUDA graphs"
    return f"{share} (at least {launch_s * 1e3:g} ms a mixture layer)"


@dataclass(frozen=True, kw_only=True)
class SoftwareTopic:
    """One thing a plan assumes about its software."""

    name: str
    phrase: Callable[[FrameworkTraits], str]  # empty where there is nothing to say
    # whether a plan's numbers depend on it
    matters: Callable[[Context, Strategy], bool] = lambda _context, _strategy: True


TOPICS: tuple[SoftwareTopic, ...] = (
    SoftwareTopic(
        name="layers", phrase=lambda t: KERNELS.get(t.kernels.saved.name, t.kernels.saved.name)
    ),
    SoftwareTopic(
        name="states",
        phrase=lambda t: (
            "weights and states of 16 bits, no master copy"
            * (t.states.optimizer_state_fraction < 1)
        ),
    ),
    SoftwareTopic(name="attention", phrase=_attention),
    SoftwareTopic(
        name="dropout", phrase=lambda t: "dropout" if t.kernels.dropout else "no dropout"
    ),
    SoftwareTopic(name="loss", phrase=lambda t: LOSSES.get(t.kernels.loss, t.kernels.loss)),
    SoftwareTopic(
        name="gradient_reduction",
        phrase=_reduction,
        matters=lambda c, s: (s.dp > 1 or s.cp > 1) and not _sharded(c, s),
    ),
    SoftwareTopic(
        name="sharded_gradients",
        phrase=lambda t: (
            (
                f"sharded gradients kept and reduced in {_width(t.states.zero2_gradient_bytes)} "
                "(overlapped)"
            )
            * bool(t.states.zero2_gradient_bytes)
        ),
        matters=_sharded,
    ),
    SoftwareTopic(
        name="accumulation",
        phrase=lambda t: (
            "gradients kept whole between micro-batches" * bool(t.states.accumulated_gradient_bytes)
        ),
        matters=lambda _, s: s.zero_stage > 1 and s.num_micro_batches > 1,
    ),
    SoftwareTopic(
        name="weight_gather",
        phrase=lambda t: (
            f"weights gathered ({_overlap(overlaps=t.overlap.overlaps_parameter_gather)})"
        ),
        matters=lambda _, s: s.zero_stage in (1, 2),
    ),
    SoftwareTopic(
        name="secondary_shards",
        phrase=lambda t: "ZeRO++ shards per node" * bool(t.states.zero3_secondary_weight_bytes),
        matters=lambda _, s: s.zero_stage == 3,
    ),
    SoftwareTopic(
        name="tensor_parallel",
        phrase=lambda t: TENSOR_PARALLEL[t.overlap.tensor_parallel_overlap],
        matters=lambda _, s: s.tp > 1,
    ),
    SoftwareTopic(
        name="pipeline_transfers",
        phrase=lambda t: TRANSFERS[t.overlap.pipeline_p2p_overlap],
        matters=lambda _, s: s.pp > 1,
    ),
    SoftwareTopic(
        name="optimizer_step",
        phrase=lambda t: (
            "optimizer steps after all stages"
            if t.overlap.optimizer_waits_for_all_stages
            else "optimizer steps stage by stage"
        ),
        matters=lambda _, s: s.pp > 1,
    ),
    SoftwareTopic(
        name="context_parallel",
        phrase=lambda t: (
            "context exchanged all-to-all"
            if t.kernels.exchanges_context
            else "context passed round a ring"
        ),
        matters=lambda _, s: s.cp > 1,
    ),
    SoftwareTopic(
        name="expert_all_to_all",
        phrase=lambda t: ALL_TO_ALL[t.overlap.expert_all_to_all_overlap],
        matters=lambda _, s: s.ep > 1,
    ),
    SoftwareTopic(
        name="dispatcher",
        phrase=lambda t: (
            (
                "dispatcher sending a token once per domain"
                if t.kernels.deduplicated_dispatch
                else "all-to-all dispatcher"
            )
            + (", sorted in its own kernels" if t.kernels.dispatch_permutes else "")
        ),
        matters=lambda _, s: s.ep > 1,
    ),
    SoftwareTopic(
        name="policies",
        phrase=lambda t: POLICY_SCOPES[t.support.policy_scope],
        matters=lambda _context, _strategy: False,
    ),
    SoftwareTopic(
        name="host",
        phrase=lambda t: f"kernels launched in {t.kernels.launch_s * 1e6:g} us each",
        matters=lambda _context, _strategy: False,
    ),
    SoftwareTopic(
        name="launch", phrase=_launch, matters=lambda context, _: context.model.moe is not None
    ),
)


def phrases(traits: FrameworkTraits) -> dict[str, str]:
    """Return what is assumed, by topic."""
    said = {topic.name: topic.phrase(traits) for topic in TOPICS}
    return {name: text for name, text in said.items() if text}


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
    said = phrases(traits)
    matter = [
        said[topic.name]
        for topic in TOPICS
        if topic.name in said and any(topic.matters(context, strategy) for strategy in used)
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
    return changed + [f"without {text}" for name, text in usual.items() if name not in own]
