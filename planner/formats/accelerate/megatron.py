"""The section ``megatron_lm_config``: pipeline, tensor, sequence and expert parallelism.

Two defaults of accelerate/utils/dataclasses.py MegatronLMPlugin are no neutral ones: without its
key context parallelism is 2, and every layer is recomputed in full. Both keys are always written.
"""

from collections.abc import Iterator, Mapping

from planner.cost.context import Context
from planner.formats.accelerate.section import Line, Section, recomputes_all
from planner.formats.format import ALL, Value
from planner.formats.refusals import beyond, words, wrong_precision
from planner.formats.settings import Settings, decided, flag, whole, word
from planner.spec.strategy import PLACEMENT_NAMES, Strategy
from planner.spec.traits import TraitValue

PREFIX = "megatron_lm_config.megatron_lm_"
TP, PP, CP, EP, ETP, STEPS, SEQUENCE, ZERO, GRANULARITY, METHOD, LAYERS, LAST, OFFLOAD, PRECISE = (
    PREFIX + name
    for name in (
        "tp_degree",
        "pp_degree",
        "context_parallel_size",
        "expert_model_parallel_size",
        "expert_tensor_parallel_size",
        "num_micro_batches",
        "sequence_parallelism",
        "use_distributed_optimizer",
        "recompute_granularity",
        "recompute_method",
        "recompute_num_layers",
        "decoder_last_pipeline_num_layers",
        "optimizer_cpu_offload",
        "use_precision_aware_optimizer",
    )
)
OWNED = (
    *(TP, PP, CP, EP, ETP, STEPS, SEQUENCE, ZERO, GRANULARITY, METHOD, LAYERS, LAST, OFFLOAD),
    PRECISE,
)
CANNOT = {
    "vpp": "the section has no key for model chunks",
    "schedule": "Megatron-LM runs 1F1B here",
    "cp": "Accelerate counts data parallelism without it, so the batch would grow",
    "dp_replicate": "the section has no key for replicas of the optimizer",
    "offload_percent": "the section has no key for a part",
}


SUPPORT: Mapping[str, TraitValue] = {
    "vpp": False,
    "cp": False,
    "hybrid_sharding": False,
    "offload_percents": (100,),
    "partial_offload_zero_stages": (),
    "placements": PLACEMENT_NAMES[:1],
    "policies": ("none", "full"),
    "schedules": ("1f1b",),
    "uneven_stages": False,
}
"""What the section can say of Megatron-LM; that the last stage may differ is not searched."""


def problems(context: Context) -> Iterator[str]:
    """What the section cannot say whatever the layout."""
    yield from wrong_precision(context, ("bf16", "fp16"))


def refusals(context: Context, strategy: Strategy) -> Iterator[str]:
    """Why the section cannot carry a strategy."""
    yield from problems(context)
    yield from beyond(strategy, CANNOT)
    if strategy.zero_stage > 1:
        yield f"zero_stage {strategy.zero_stage}: the distributed optimizer is stage 1"
    if strategy.offload not in ("none", "optimizer:host"):
        yield f"offload {strategy.offload}: the section offloads the optimizer to the host only"
    if strategy.pp > 1 and strategy.dp > 1 and strategy.placement != PLACEMENT_NAMES[0]:
        yield f"placement {strategy.placement}: the section has no key for the order of the axes"
    others = strategy.layers_per_stage[:-1]
    if len(set(others)) > 1:
        yield f"layers_per_stage {words(strategy.layers_per_stage)}: only the last may differ"
    selective, full, offloaded = strategy.policy_counts
    if any(selective):
        yield f"selective_layers_per_stage {words(selective)}: Accelerate always gives a method"
    if len(set(full)) > 1 and not recomputes_all(strategy):
        yield f"recompute_layers_per_stage {words(full)}: one number holds for all stages"
    if any(offloaded):
        yield f"offloaded_layers_per_stage {words(offloaded)}: the section has no key for it"


def lines(_: Context, strategy: Strategy) -> Iterator[Line]:
    """What the section is set to."""
    yield Line(key=TP, value=strategy.tp, why="tensor parallelism, innermost")
    yield Line(key=PP, value=strategy.pp, why="pipeline stages")
    yield Line(key=CP, value=1, why="without this key Accelerate takes 2")
    yield Line(key=EP, value=strategy.ep, why="expert parallelism")
    if strategy.etp != strategy.tp:
        yield Line(key=ETP, value=strategy.etp, why="tensor parallelism of experts")
    steps = strategy.num_micro_batches
    yield Line(key=STEPS, value=steps, why="micro-batches per iteration")
    sequence = strategy.sequence_parallel
    yield Line(key=SEQUENCE, value=sequence, why="norms split over tp" if sequence else "not split")
    zero = strategy.zero_stage == 1
    yield Line(key=ZERO, value=zero, why=f"zero_stage {strategy.zero_stage}")
    yield Line(key=GRANULARITY, value="full", why="with the next two keys")
    if recomputes_all(strategy):
        yield Line(key=METHOD, value="uniform", why="every layer is recomputed")
        yield Line(key=LAYERS, value=1, why="layer by layer")
    else:
        full = strategy.recompute_layers_per_stage[0]
        yield Line(key=METHOD, value="block", why="the first layers of every stage")
        yield Line(key=LAYERS, value=full, why=f"{full} layers of every stage are recomputed")
    if len(set(strategy.layers_per_stage)) > 1:
        last = strategy.layers_per_stage[-1]
        yield Line(key=LAST, value=last, why=f"layers {words(strategy.layers_per_stage)}")
    if strategy.offload != "none":
        yield Line(key=OFFLOAD, value=True, why=f"offload {strategy.offload}")
        yield Line(key=PRECISE, value=True, why="Megatron offloads this optimizer only")


def decisions(settings: Settings) -> dict[str, Value]:
    """What the section decides."""
    degrees = {"tp": TP, "pp": PP, "ep": EP}
    found = {name: decided(settings, key, whole(settings, key, 1)) for name, key in degrees.items()}
    found = {name: value for name, value in found.items() if value.value != 1}
    if ETP in settings:
        found["etp"] = decided(settings, ETP, whole(settings, ETP, whole(settings, TP, 1)))
    if (cp := whole(settings, CP, 2)) != 1:
        found["cp"] = decided(settings, CP, cp)
    model = whole(settings, TP, 1) * whole(settings, PP, 1) * cp
    processes = whole(settings, "num_processes", -1)
    if processes > 0 and model > 0 and processes % model == 0:
        found["dp"] = decided(settings, "num_processes", processes // model)
    zero = 1 if flag(settings, ZERO, default=False) else 0
    found["zero_stage"] = decided(settings, ZERO, zero)
    found["num_micro_batches"] = decided(settings, STEPS, whole(settings, STEPS, 1))
    if flag(settings, SEQUENCE, default=False):
        found["sequence_parallel"] = decided(settings, SEQUENCE, True)
    if flag(settings, OFFLOAD, default=False):
        found["offload"] = decided(settings, OFFLOAD, "optimizer:host")
    return found | _recomputation(settings)


def _recomputation(settings: Settings) -> dict[str, Value]:
    if word(settings, GRANULARITY, "full") == "selective":
        return {"selective_layers_per_stage": decided(settings, GRANULARITY, ALL)}
    if word(settings, METHOD, "uniform") == "uniform":
        return {"recompute_layers_per_stage": decided(settings, METHOD, ALL)}
    layers = whole(settings, LAYERS, 1)
    pp = max(whole(settings, PP, 1), 1)
    if layers <= 0 or pp > 10**4:
        return {}
    return {"recompute_layers_per_stage": decided(settings, LAYERS, (layers,) * pp)}


def environment(_context: Context, _strategy: Strategy) -> dict[str, str]:
    """What Megatron-LM needs where tp is above 1 on GPUs before Blackwell."""
    return {"CUDA_DEVICE_MAX_CONNECTIONS": "1"}


MEGATRON = Section(
    title="megatron_lm_config",
    distributed_type="MEGATRON_LM",
    owned=OWNED,
    refusals=refusals,
    lines=lines,
    decisions=decisions,
    environment=environment,
)
