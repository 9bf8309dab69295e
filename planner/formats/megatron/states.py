"""States, precision and what runs beside what, in Megatron-LM's options and environment.

Sources: megatron/training/arguments.py, megatron/core/optimizer/optimizer_config.py.
"""

from collections.abc import Iterable, Iterator, Mapping

from planner.cost.context import Context
from planner.formats.decision import (
    Decided,
    KeyMapping,
    Of,
    Table,
    reads,
    reads_flag,
    reads_key,
    refusals,
    several,
)
from planner.formats.megatron.options import (
    ETP,
    TP,
    alike,
    degree,
    names,
    options,
    row,
    whole,
    word,
)
from planner.formats.settings import Settings, as_number, flag, given
from planner.frameworks.registry import FACTS
from planner.frameworks.settings import capacity_settings, runtime_settings
from planner.spec.strategy import Strategy
from planner.spec.traits import Setting

PRECISIONS: Mapping[str, Mapping[str, object]] = {
    "bf16": {"--bf16": True},
    "fp16": {"--fp16": True},
    "fp8": {"--bf16": True, "--fp8-format": "hybrid", "--fp8-recipe": "tensorwise"},
    "fp8_block": {"--bf16": True, "--fp8-format": "hybrid", "--fp8-recipe": "blockwise"},
    "mxfp8": {"--bf16": True, "--fp8-format": "e4m3", "--fp8-recipe": "mxfp8"},
    "fp4": {"--bf16": True, "--fp4-format": "e2m1", "--fp4-recipe": "nvfp4"},
}
OPTIMIZERS: Mapping[str, Mapping[str, object]] = {
    "adam": {"--optimizer": "adam"},
    "adam-bf16": {
        "--optimizer": "adam",
        "--use-precision-aware-optimizer": True,
        "--exp-avg-dtype": "bf16",
        "--exp-avg-sq-dtype": "bf16",
    },
    "sgd": {"--optimizer": "sgd", "--sgd-momentum": "0"},
    "sgd-momentum": {"--optimizer": "sgd", "--sgd-momentum": "0.9"},
    "lion": {"--optimizer": "lion"},
    "muon": {"--optimizer": "muon"},
}
REFUSALS = refusals(__package__)
AWARE = "--use-precision-aware-optimizer"
MOMENTS = ("--exp-avg-dtype", "--exp-avg-sq-dtype")
SHARDING = "--data-parallel-sharding-strategy"
# Parts that tp, or what splits an expert, and further ranks cut a weight into.
WEIGHT_SHARDS = "--tensor-parallel-num-weight-shards"
EXPERT_SHARDS = "--expert-tensor-parallel-num-weight-shards"
# Of tokens to experts; all but flex are priced as the plain all-to-all.
DISPATCHER, BACKEND = "--moe-token-dispatcher-type", "--moe-flex-dispatcher-backend"
SORTING, FUSED = "--moe-permute-fusion", "--moe-permute-fusion-into-hybridep"
LOSS = "--cross-entropy-loss-fusion"
GRAPHS = "--cuda-graph-impl"
# The form of checkpoints that Megatron-FSDP has.
DTENSOR = "fsdp_dtensor"
# ZeRO stages by Megatron-FSDP's names; plans use it from stage 2 on.
FSDP_STAGES = {
    "no_shard": 0,
    "optim": 1,
    "optim_grads": 2,
    "optim_grads_params": 3,
}


def _of_optimizer(settings: Settings) -> Decided:
    name = word(settings, "--optimizer")
    # Megatron's own default is 0.9.
    if name == "sgd" and as_number(given(settings, "--sgd-momentum")) != 0:
        name = "sgd-momentum"
    states = [given(settings, key) for key in MOMENTS]
    if name == "adam" and flag(settings, AWARE) and states == ["bf16", "bf16"]:
        name = "adam-bf16"
    yield "optimizer", "--optimizer", "muon" if name == "dist_muon" else name


def _of_sharding(settings: Settings) -> Decided:
    if flag(settings, "--use-megatron-fsdp"):
        yield "zero_stage", SHARDING, FSDP_STAGES[word(settings, SHARDING)]
    elif flag(settings, "--use-torch-fsdp2"):
        reshards = "--torch-fsdp2-no-reshard-after-forward" not in settings
        yield "zero_stage", "--use-torch-fsdp2", 3 if reshards else 2
    elif flag(settings, "--use-distributed-optimizer"):
        yield "zero_stage", "--use-distributed-optimizer", 1


def weight_shards(settings: Settings) -> Iterator[Setting]:
    """Ranks that weights are cut over beside tensor parallelism, as traits.

    Source: resolve_tensor_parallel_weight_shards in megatron/core/model_parallel_config.py.
    """
    tp = whole(settings, TP)
    cut = {
        "states.weight_shards": whole(settings, WEIGHT_SHARDS) // tp,
        "states.expert_weight_shards": whole(settings, EXPERT_SHARDS) // whole(settings, ETP, tp),
    }
    return ((trait, float(further)) for trait, further in cut.items() if further > 1)


def _of_offload(settings: Settings) -> Decided:
    if flag(settings, "--optimizer-cpu-offload"):
        yield "offload", "--optimizer-cpu-offload", "optimizer:host"
        key = "--optimizer-offload-fraction"
        share = as_number(given(settings, key))
        if share is None:
            share = 1.0
        yield "offload_percent", key, round(100 * min(max(share, 0.0), 1.0))


def _of_precision(settings: Settings) -> Decided:
    recipes = {
        "tensorwise": "fp8",
        "delayed": "fp8",
        "blockwise": "fp8_block",
        "mxfp8": "mxfp8",
    }
    recipe = recipes.get(word(settings, "--fp8-recipe"), "")
    named = {
        "--fp4-format": "fp4",
        "--fp8-format": recipe,
        "--bf16": "bf16",
        "--fp16": "fp16",
    }
    key = next((option for option in named if given(settings, option)), "")
    if named.get(key):
        yield "precision", key, named[key]


CHECKPOINTS = KeyMapping(
    names=("zero_stage",),
    keys=("--ckpt-format",),
    # Which other checkpoints a file asks for, known or not, is none of the planner's.
    of=reads_key(
        "--ckpt-format", "--ckpt-format", lambda given: given if given == DTENSOR else None
    ),
)
_ON_HOST = "{offload_percent} % of the optimizer's states live on the host"
STATES: Table = (
    row(
        "optimizer",
        "--optimizer --sgd-momentum --use-precision-aware-optimizer "
        "--exp-avg-dtype --exp-avg-sq-dtype",
        lambda c, _: alike(
            OPTIMIZERS[c.traits.optimizer.name], f"planned with optimizer {c.traits.optimizer.name}"
        ),
        _of_optimizer,
        REFUSALS["optimizer"],
    ),
    row(
        "zero_stage",
        "--use-distributed-optimizer --use-megatron-fsdp --data-parallel-sharding-strategy "
        "--init-model-with-meta-device --use-torch-fsdp2",
        options(
            {
                "--use-distributed-optimizer": (
                    "zero_stage > 0",
                    (
                        "sharded over the data-parallel ranks: optimizer states"
                        "{', gradients and weights' if zero_stage == 3 else ' and gradients' "
                        "if zero_stage == 2 else ''} (ZeRO {zero_stage})"
                    ),
                ),
                "--use-megatron-fsdp": ("zero_stage > 1", "ZeRO {zero_stage} is Megatron-FSDP"),
                SHARDING: (
                    lambda _, s: [*FSDP_STAGES][s.zero_stage] if s.zero_stage > 1 else None,
                    "ZeRO {zero_stage} is Megatron-FSDP",
                ),
                "--ckpt-format": (
                    f"{DTENSOR!r} if zero_stage > 1 else None",
                    "the checkpoints Megatron-FSDP has",
                ),
                "--init-model-with-meta-device": (
                    "zero_stage == 3",
                    "no rank holds the whole model, not even at the start",
                ),
            }
        ),
        _of_sharding,
        REFUSALS["sharding"],
    ),
    CHECKPOINTS,
    degree(
        "dp_replicate",
        "--num-distributed-optimizer-instances",
        "the sharding group is replicated {dp_replicate} times",
        REFUSALS["instances"],
    ),
    # Which traits they are is no decision; of a plan with another tp the options differ.
    row(
        "_weight_shards",
        f"{WEIGHT_SHARDS} {EXPERT_SHARDS}",
        options(
            {
                option: (
                    f"{split} * whole(traits.states.{cut}) if traits.states.{cut} > 1 else None",
                    f"cut over {{traits.states.{cut}:g}} further ranks, gathered for use",
                )
                for option, split, cut in (
                    (WEIGHT_SHARDS, "tp", "weight_shards"),
                    (EXPERT_SHARDS, "etp", "expert_weight_shards"),
                )
            }
        ),
        reads("_weight_shards", WEIGHT_SHARDS, lambda each: tuple(weight_shards(each))),
    ),
    row(
        "offload offload_percent",
        "--optimizer-cpu-offload --optimizer-offload-fraction --use-precision-aware-optimizer",
        options(
            {
                "--optimizer-cpu-offload": ("offload != 'none'", _ON_HOST),
                "--optimizer-offload-fraction": (
                    lambda _, s: s.offload_percent / 100 if s.offload != "none" else None,
                    _ON_HOST,
                ),
                AWARE: (
                    "offload != 'none' and traits.optimizer.name == 'adam'",
                    "Megatron offloads the optimizer only together with it",
                ),
            }
        ),
        _of_offload,
        REFUSALS["offload"],
    ),
    row(
        "precision",
        "--bf16 --fp16 --fp8-format --fp8-recipe --fp4-format --fp4-recipe",
        lambda c, _: alike(PRECISIONS[c.job.precision], f"planned in {c.job.precision}"),
        _of_precision,
    ),
)

# Megatron sets it for bf16 by itself, not for fp16.
FP32_GRADIENTS = "--accumulate-allreduce-grads-in-fp32"
BF16_GRADIENTS = "--grad-reduce-in-bf16"
# Of gradients that are held and reduced in 16 bits, too.
MAIN_GRADIENTS = "--main-grads-dtype"
# The weights' dtype where it is left out; gradients travel in it too.
FSDP_GRADIENTS = "--megatron-fsdp-main-grads-dtype"
# Below 0: no capacity, as without it.
CAPACITY = "--moe-expert-capacity-factor"
PADS = "--moe-pad-expert-input-to-capacity"
CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"


# What expert exchange runs beside.
of_exchange: Of = several(
    reads_flag("expert_exchange", "--moe-shared-expert-overlap", "shared_expert"),
    reads_flag("expert_exchange", "--overlap-moe-expert-parallel-comm", "batches"),
)


def of_runtime(settings: Settings) -> Decided:
    """Yield the runtime decisions of a file: gradient bytes, and what overlaps expert exchange."""
    yield from of_exchange(settings)
    is_bf16 = flag(settings, "--bf16")
    held = 2 if is_bf16 or flag(settings, "--fp16") else 0
    key, is_fp32 = FP32_GRADIENTS, is_bf16 or flag(settings, FP32_GRADIENTS)
    if flag(settings, "--use-megatron-fsdp"):
        key, is_fp32 = FSDP_GRADIENTS, word(settings, FSDP_GRADIENTS) == "fp32"
    elif flag(settings, BF16_GRADIENTS):
        key, held, is_fp32 = BF16_GRADIENTS, 2, False
    elif flag(settings, AWARE) and given(settings, MAIN_GRADIENTS) == "bf16":
        # Without it Megatron accumulates in fp32, and says so: arguments.py.
        key, held, is_fp32 = MAIN_GRADIENTS, 2, flag(settings, FP32_GRADIENTS)
    if held or is_fp32:
        yield "gradient_bytes", key, 4 if is_fp32 else held


def traits_of(settings: Settings) -> Iterator[Setting]:
    """Loss, capacity of experts, cut weights and types of Adam's states that a file asks for."""
    if not flag(settings, LOSS):
        yield f"{FACTS}.loss", "vocab-parallel"
    factor = as_number(given(settings, CAPACITY))
    if factor is not None and factor > 0:
        yield from capacity_settings(factor, pads=flag(settings, PADS))
    yield from weight_shards(settings)
    yield from _of_mixtures(settings)
    yield from _state_types(settings)


def _of_mixtures(settings: Settings) -> Iterable[Setting]:
    """What sends tokens to experts and sorts them, and what CUDA graphs hold of their launches."""
    suffix = "" if flag(settings, SORTING) else "-unfused"
    hybrid = "hybridep-fused" if flag(settings, FUSED) else "hybridep"
    flex = hybrid if word(settings, BACKEND) == "hybridep" else "deepep" + suffix
    dispatcher = flex if word(settings, DISPATCHER) == "flex" else "alltoall" + suffix
    kind = word(settings, GRAPHS)
    graphs = [
        kind,
        *names(settings, "--cuda-graph-modules"),
        *names(settings, "--cuda-graph-scope"),
    ]
    return runtime_settings(
        graphs=graphs if kind != "none" else (),
        dispatcher=dispatcher if suffix or DISPATCHER in settings else None,
    )


def _state_types(settings: Settings) -> Iterator[Setting]:
    """Bytes of the precision-aware Adam's moments, as a share of 8, and of its master weights.

    Of fp32 masters beside bf16 weights Transformer Engine keeps the 16 bits that those lack, other
    recipes of fp8 than delayed keep them whole (store_param_remainders of optimizer_config.py).
    Moments of 16 bits both are ``adam-bf16``. On the host all is fp32.
    """
    is_adam = flag(settings, AWARE) and word(settings, "--optimizer") == "adam"
    moments = [word(settings, key) for key in MOMENTS]
    if not is_adam or flag(settings, "--optimizer-cpu-offload") or moments == ["bf16", "bf16"]:
        return
    scaled = given(settings, "--fp8-format") and word(settings, "--fp8-recipe") != "delayed"
    has_remainders = flag(settings, "--bf16") and not scaled
    if has_remainders or word(settings, "--main-params-dtype") == "fp16":
        yield "states.master_weight_bytes", 2.0
    num_bytes = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0}
    share = sum(num_bytes[each] for each in moments) / 8.0
    if share < 1.0:
        yield "states.optimizer_state_fraction", share


def keeps_order(compute_capability: float) -> bool:
    """Return True if an accelerator runs kernels in order without CUDA_DEVICE_MAX_CONNECTIONS."""
    # Blackwell's and later: get_device_arch_version in megatron/training/arguments.py.
    return compute_capability >= 10.0


def environment(context: Context, strategy: Strategy) -> dict[str, str]:
    """Variables every process needs."""
    if strategy.zero_stage > 1:
        # Megatron-FSDP refuses 1; 32 as in Megatron-Bridge's perf_recipes/llama/gb200/llama3.py.
        return {CONNECTIONS: "32"}
    is_ordered = keeps_order(context.cluster.accelerator.compute_capability)
    return {} if is_ordered or strategy.tp * strategy.cp == 1 else {CONNECTIONS: "1"}
