"""How optimizer, sharding, offload and precision stand in Megatron-LM's options, row by row.

Source: megatron/training/arguments.py.
"""

from collections.abc import Iterator, Mapping

from planner.cost.context import Context
from planner.formats.decision import Decision, Line, Table, stated, unless
from planner.formats.format import Value
from planner.formats.megatron.rows import chosen, degree, row
from planner.formats.megatron.settings import fraction, is_on
from planner.formats.settings import Settings, decided, given, word
from planner.spec.strategy import Strategy

Words = tuple[tuple[str, ...], ...]
PRECISIONS: Mapping[str, Words] = {
    "bf16": (("--bf16",),),
    "fp16": (("--fp16",),),
    "fp8": (("--bf16",), ("--fp8-format", "hybrid"), ("--fp8-recipe", "tensorwise")),
    "fp8_block": (("--bf16",), ("--fp8-format", "hybrid"), ("--fp8-recipe", "blockwise")),
    "mxfp8": (("--bf16",), ("--fp8-format", "e4m3"), ("--fp8-recipe", "mxfp8")),
    "fp4": (("--bf16",), ("--fp4-format", "e2m1"), ("--fp4-recipe", "nvfp4")),
}
OPTIMIZERS: Mapping[str, Words] = {
    "adam": (("--optimizer", "adam"),),
    "adam-bf16": (
        ("--optimizer", "adam"),
        ("--use-precision-aware-optimizer",),
        ("--exp-avg-dtype", "bf16"),
        ("--exp-avg-sq-dtype", "bf16"),
    ),
    "sgd": (("--optimizer", "sgd"), ("--sgd-momentum", "0")),
    "sgd-momentum": (("--optimizer", "sgd"), ("--sgd-momentum", "0.9")),
    "lion": (("--optimizer", "lion"),),
    "muon": (("--optimizer", "muon"),),
}
LAYER_WISE = ("lion", "muon")
"""Optimizers that share out whole tensors under --use-distributed-optimizer."""
OFFLOADS = ("none", "optimizer:host")
_FP8_RECIPES = {"tensorwise": "fp8", "delayed": "fp8", "blockwise": "fp8_block", "mxfp8": "mxfp8"}
AWARE = "--use-precision-aware-optimizer"
SHARDING = "--data-parallel-sharding-strategy"
FSDP_CHECKPOINTS = ("--ckpt-format", "fsdp_dtensor")
FSDP_STAGES = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
"""ZeRO stages by Megatron-FSDP's names; plans use it from stage 2 on."""
_SHARDED = {
    1: "optimizer states (ZeRO 1)",
    2: "optimizer states and gradients (ZeRO 2)",
    3: "optimizer states, gradients and weights (ZeRO 3)",
}


def _words(options: Words, why: str) -> Iterator[Line]:
    return (chosen(*words, why=why) for words in options)


def _to_optimizer(context: Context, _: Strategy) -> Iterator[Line]:
    name = context.traits.optimizer.name
    yield from _words(OPTIMIZERS[name], f"planned with optimizer {name}")


def _of_optimizer(settings: Settings) -> Iterator[tuple[str, Value]]:
    name = word(settings, "--optimizer", "adam")
    if name == "sgd" and fraction(settings, "--sgd-momentum", 0.9):
        name = "sgd-momentum"
    states = [given(settings, key) for key in ("--exp-avg-dtype", "--exp-avg-sq-dtype")]
    if name == "adam" and is_on(settings, AWARE) and states == ["bf16", "bf16"]:
        name = "adam-bf16"
    yield "optimizer", decided(settings, "--optimizer", "muon" if name == "dist_muon" else name)


def optimizer_problems(context: Context) -> Iterator[str]:
    """An optimizer that no option names."""
    name = context.traits.optimizer.name
    if name not in OPTIMIZERS:
        yield f"optimizer: {name}; allowed are {', '.join(OPTIMIZERS)}"


def _to_sharding(_: Context, strategy: Strategy) -> Iterator[Line]:
    stage = strategy.zero_stage
    if stage:
        why = f"sharded over the data-parallel ranks: {_SHARDED[stage]}"
        yield chosen("--use-distributed-optimizer", why=why)
    if stage > 1:
        why = f"ZeRO {stage} is Megatron-FSDP"
        yield chosen("--use-megatron-fsdp", why=why)
        yield chosen(SHARDING, list(FSDP_STAGES)[stage], why=why)
        yield chosen(*FSDP_CHECKPOINTS, why="the checkpoints Megatron-FSDP has")
    if stage == 3:
        why = "no rank holds the whole model, not even at the start"
        yield chosen("--init-model-with-meta-device", why=why)


def _of_sharding(settings: Settings) -> Iterator[tuple[str, Value]]:
    if is_on(settings, "--use-megatron-fsdp"):
        stage = FSDP_STAGES[word(settings, SHARDING, "optim_grads_params")]
        yield "zero_stage", decided(settings, SHARDING, stage)
    elif is_on(settings, "--use-torch-fsdp2"):
        reshards = "--torch-fsdp2-no-reshard-after-forward" not in settings
        yield "zero_stage", decided(settings, "--use-torch-fsdp2", 3 if reshards else 2)
    elif is_on(settings, "--use-distributed-optimizer"):
        yield "zero_stage", decided(settings, "--use-distributed-optimizer", 1)


def _to_offload(context: Context, strategy: Strategy) -> Iterator[Line]:
    if strategy.offload == "none":
        return
    why = f"{strategy.offload_percent} % of the optimizer's states live on the host"
    yield chosen("--optimizer-cpu-offload", why=why)
    yield chosen("--optimizer-offload-fraction", strategy.offload_percent / 100, why=why)
    if context.traits.optimizer.name == "adam":
        yield chosen(AWARE, why="Megatron offloads the optimizer only together with it")


def _of_offload(settings: Settings) -> Iterator[tuple[str, Value]]:
    if is_on(settings, "--optimizer-cpu-offload"):
        yield "offload", decided(settings, "--optimizer-cpu-offload", OFFLOADS[1])
        key = "--optimizer-offload-fraction"
        percent = round(100 * min(max(fraction(settings, key, 1.0), 0.0), 1.0))
        yield "offload_percent", decided(settings, key, percent)


def _no_offload(context: Context, strategy: Strategy) -> Iterator[str]:
    name = context.traits.optimizer.name
    if strategy.offload not in OFFLOADS:
        yield f"offload: {strategy.offload}; allowed are {', '.join(OFFLOADS)}"
    if strategy.offload != "none" and ("--optimizer", "adam") not in OPTIMIZERS.get(name, ()):
        yield f"offload: {strategy.offload} with optimizer {name}; only adam can be offloaded"


def _to_precision(context: Context, _: Strategy) -> Iterator[Line]:
    precision = context.job.precision
    yield from _words(PRECISIONS[precision], f"planned in {precision}")


def _of_precision(settings: Settings) -> Iterator[tuple[str, Value]]:
    if given(settings, "--fp4-format"):
        yield "precision", decided(settings, "--fp4-format", "fp4")
    elif given(settings, "--fp8-format"):
        recipe = word(settings, "--fp8-recipe", "delayed")
        if recipe in _FP8_RECIPES:
            yield "precision", decided(settings, "--fp8-format", _FP8_RECIPES[recipe])
    else:
        for precision in ("bf16", "fp16"):
            if is_on(settings, f"--{precision}"):
                yield "precision", decided(settings, f"--{precision}", precision)
                break


ROWS: Table = (
    row(
        "optimizer",
        "--optimizer --sgd-momentum --use-precision-aware-optimizer "
        "--exp-avg-dtype --exp-avg-sq-dtype",
        _to_optimizer,
        _of_optimizer,
        lambda context, _: optimizer_problems(context),
    ),
    row(
        "zero_stage",
        "--use-distributed-optimizer --use-megatron-fsdp --data-parallel-sharding-strategy "
        "--init-model-with-meta-device --use-torch-fsdp2",
        _to_sharding,
        _of_sharding,
        unless(
            lambda _, s: s.zero_stage > 1 and s.pp > 1,
            "zero_stage: {s.zero_stage} with pp {s.pp}; Megatron-FSDP has no stages",
        ),
    ),
    Decision(
        names=("zero_stage",),
        keys=FSDP_CHECKPOINTS[:1],
        of=stated(
            FSDP_CHECKPOINTS[0],
            FSDP_CHECKPOINTS[0],
            # Which other checkpoints a file asks for is none of the planner's.
            lambda value: value if value == FSDP_CHECKPOINTS[1] else None,
        ),
    ),
    degree(
        "dp_replicate",
        "--num-distributed-optimizer-instances",
        "the sharding group is replicated {s.dp_replicate} times",
        cannot=unless(
            lambda c, s: s.dp_replicate > 1 and c.traits.optimizer.name in LAYER_WISE,
            "dp_replicate: {s.dp_replicate} with optimizer {c.traits.optimizer.name}; "
            "it has no instances",
        ),
    ),
    row(
        "offload offload_percent",
        "--optimizer-cpu-offload --optimizer-offload-fraction --use-precision-aware-optimizer",
        _to_offload,
        _of_offload,
        _no_offload,
    ),
    row(
        "precision",
        "--bf16 --fp16 --fp8-format --fp8-recipe --fp4-format --fp4-recipe",
        _to_precision,
        _of_precision,
    ),
)
