"""What Megatron's options decide, by the names of the planner's decisions."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from planner.formats.format import ALL, PerChunk, Value
from planner.formats.megatron.layout import (
    chunks_of,
    even_chunks,
    given_ends,
    parse_layout,
    per_stage,
    short_ends,
)
from planner.spec.strategy import PLACEMENT_NAMES

Settings = Mapping[str, Value]
DEGREE_TP = "--tensor-model-parallel-size"
DIRECT: Mapping[str, str] = {
    "--tensor-model-parallel-size": "tp",
    "--pipeline-model-parallel-size": "pp",
    "--context-parallel-size": "cp",
    "--expert-model-parallel-size": "ep",
    "--expert-tensor-parallel-size": "etp",
    "--num-distributed-optimizer-instances": "dp_replicate",
    "--micro-batch-size": "micro_batch",
    "--global-batch-size": "global_batch",
    "--seq-length": "seq_len",
    "--num-layers": "model.num_layers",
    "--hidden-size": "model.hidden_size",
    "--num-attention-heads": "model.num_heads",
    "--ffn-hidden-size": "model.ffn_size",
    "--vocab-size": "model.vocab_size",
    "--num-experts": "model.num_experts",
}
FP32_GRADIENTS = "--accumulate-allreduce-grads-in-fp32"
"""Megatron sets it for bf16 by itself, not for fp16."""
FSDP_GRADIENTS = "--megatron-fsdp-main-grads-dtype"
"""The weights' dtype where it is left out; gradients travel in it too."""
EXCHANGES: Mapping[str, str] = {
    "--moe-shared-expert-overlap": "shared_expert",
    "--overlap-moe-expert-parallel-comm": "batches",
}
"""What expert exchange runs beside."""
FSDP_STAGES = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
MAX_CHUNKS = 10_000
COUNTS = ("selective_layers_per_stage", "recompute_layers_per_stage", "offloaded_layers_per_stage")
_SPLITS = (
    "--pipeline-model-parallel-layout",
    "--num-layers-per-virtual-pipeline-stage",
    "--num-virtual-stages-per-pipeline-rank",
    "--decoder-first-pipeline-num-layers",
    "--decoder-last-pipeline-num-layers",
    "--account-for-embedding-in-pipeline-split",
    "--account-for-loss-in-pipeline-split",
    "--pipeline-model-parallel-size",
)
_FP8_RECIPES = {"tensorwise": "fp8", "delayed": "fp8", "blockwise": "fp8_block", "mxfp8": "mxfp8"}


def known(settings: Settings, option: str) -> object:
    """The value of an option; None where it is not given or not known."""
    found = settings.get(option)
    return None if found is None else found.value


def is_on(settings: Settings, option: str) -> bool:
    """Whether a flag is given."""
    return known(settings, option) is True


def number(settings: Settings, option: str) -> int | None:
    """A whole number; None where it is not given or not known."""
    value = known(settings, option)
    return value if type(value) is int else None


def text(settings: Settings, option: str, default: str = "") -> str:
    """A word; the default where it is not given or not known."""
    value = known(settings, option)
    return value if isinstance(value, str) else default


def fraction(settings: Settings, option: str, default: float) -> float:
    """A number with a point; the default where it is not given or not known."""
    value = known(settings, option)
    return float(value) if isinstance(value, int | float) else default


def names(settings: Settings, option: str, default: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Several words; the default where they are not given or not known."""
    value = known(settings, option)
    return tuple(map(str, value)) if isinstance(value, tuple) else default


def left_open(settings: Settings) -> dict[str, Value]:
    """Decisions that are stated, nobody knows how."""
    return {
        decision: settings[option]
        for option, decision in DIRECT.items()
        if option in settings and known(settings, option) is None
    }


def decisions_of(settings: Settings, num_gpus: Value | None = None) -> dict[str, Value]:
    """Everything the options decide; what a default of Megatron decides stands in line 0."""
    found = dict(_decided(settings))
    if num_gpus is not None:
        found["num_gpus"] = num_gpus
        found |= _data_parallel(settings, num_gpus)
    return found


def whole(settings: Settings, option: str, default: int = 1) -> int:
    """A number from 1 on; the default where it is not one."""
    value = number(settings, option)
    return value if value is not None and value >= 1 else default


def _at(settings: Settings, option: str, value: object) -> Value:
    """A value that an option decides, or its absence."""
    found = settings.get(option)
    key, line = (found.key, found.line) if found else (option, 0)
    return Value(value=value, key=key, line=line)


def _decided(settings: Settings) -> Iterator[tuple[str, Value]]:
    for option, decision in DIRECT.items():
        if known(settings, option) is not None:
            yield decision, settings[option]
    if known(settings, "--encoder-seq-length") is not None and "--seq-length" not in settings:
        yield "seq_len", settings["--encoder-seq-length"]
    heads = number(settings, "--num-attention-heads")
    if is_on(settings, "--group-query-attention"):
        groups = whole(settings, "--num-query-groups")
        yield "model.num_kv_heads", _at(settings, "--num-query-groups", groups)
    elif heads is not None:
        yield "model.num_kv_heads", _at(settings, "--group-query-attention", heads)
    if is_on(settings, "--sequence-parallel") and whole(settings, DEGREE_TP) > 1:
        yield "sequence_parallel", _at(settings, "--sequence-parallel", True)
    if is_on(settings, "--use-tp-pp-dp-mapping"):
        yield "placement", _at(settings, "--use-tp-pp-dp-mapping", PLACEMENT_NAMES[1])
    yield from _states(settings)
    yield from _precision(settings)
    yield from _pipeline(settings)


def _states(settings: Settings) -> Iterator[tuple[str, Value]]:
    if is_on(settings, "--use-megatron-fsdp"):
        option = "--data-parallel-sharding-strategy"
        strategy = text(settings, option, "optim_grads_params")
        yield "zero_stage", _at(settings, option, FSDP_STAGES[strategy])
    elif is_on(settings, "--use-torch-fsdp2"):
        reshards = "--torch-fsdp2-no-reshard-after-forward" not in settings
        yield "zero_stage", _at(settings, "--use-torch-fsdp2", 3 if reshards else 2)
    elif is_on(settings, "--use-distributed-optimizer"):
        yield "zero_stage", _at(settings, "--use-distributed-optimizer", 1)
    if is_on(settings, "--optimizer-cpu-offload"):
        yield "offload", _at(settings, "--optimizer-cpu-offload", "optimizer:host")
        option = "--optimizer-offload-fraction"
        percent = round(100 * min(max(fraction(settings, option, 1.0), 0.0), 1.0))
        yield "offload_percent", _at(settings, option, percent)
    yield "optimizer", _optimizer(settings)
    for option, beside in EXCHANGES.items():
        if is_on(settings, option):
            yield "expert_exchange", _at(settings, option, beside)
    if is_on(settings, "--use-megatron-fsdp") and text(settings, FSDP_GRADIENTS) == "fp32":
        yield "gradient_bytes", _at(settings, FSDP_GRADIENTS, 4)
    elif is_on(settings, "--grad-reduce-in-bf16"):
        yield "gradient_bytes", _at(settings, "--grad-reduce-in-bf16", 2)
    elif is_on(settings, "--fp16") and not is_on(settings, FP32_GRADIENTS):
        yield "gradient_bytes", _at(settings, FP32_GRADIENTS, 2)


def _optimizer(settings: Settings) -> Value:
    name = text(settings, "--optimizer", "adam")
    if name == "sgd" and fraction(settings, "--sgd-momentum", 0.9):
        name = "sgd-momentum"
    is_small = is_on(settings, "--use-precision-aware-optimizer") and (
        known(settings, "--exp-avg-dtype") == known(settings, "--exp-avg-sq-dtype") == "bf16"
    )
    if name == "adam" and is_small:
        name = "adam-bf16"
    return _at(settings, "--optimizer", "muon" if name == "dist_muon" else name)


def _precision(settings: Settings) -> Iterator[tuple[str, Value]]:
    if known(settings, "--fp4-format"):
        yield "precision", _at(settings, "--fp4-format", "fp4")
    elif known(settings, "--fp8-format"):
        recipe = text(settings, "--fp8-recipe", "delayed")
        if recipe in _FP8_RECIPES:
            yield "precision", _at(settings, "--fp8-format", _FP8_RECIPES[recipe])
    else:
        for option, precision in (("--bf16", "bf16"), ("--fp16", "fp16")):
            if is_on(settings, option):
                yield "precision", _at(settings, option, precision)


def _pipeline(settings: Settings) -> Iterator[tuple[str, Value]]:
    split = next((option for option in _SPLITS if option in settings), _SPLITS[-1])
    pp = whole(settings, "--pipeline-model-parallel-size")
    chunks = chunks_in(settings)
    if pp > 1:
        yield "schedule", _at(settings, "--pipeline-model-parallel-size", "1f1b")
    if chunks is None:
        vpp = whole(settings, "--num-virtual-stages-per-pipeline-rank")
        if vpp > 1:
            yield "vpp", _at(settings, "--num-virtual-stages-per-pipeline-rank", vpp)
        if "--num-layers" not in settings and _is_even(settings):
            yield from _recomputed_alike(settings, pp)
        return
    if len(chunks) > pp:
        yield "vpp", _at(settings, split, len(chunks) // pp)
    layers = per_stage(chunks, pp)
    yield "layers_per_stage", _at(settings, split, layers)
    yield from _recomputed(settings, chunks, layers)


def chunks_in(settings: Settings) -> tuple[int, ...] | None:
    """Layers of every chunk; None where they do not divide or are not known."""
    pp = whole(settings, "--pipeline-model-parallel-size")
    num_layers = whole(settings, "--num-layers", 0)
    if pp > MAX_CHUNKS or num_layers > MAX_CHUNKS:
        return None
    layout = text(settings, "--pipeline-model-parallel-layout")
    if layout:
        try:
            stages = chunks_of(parse_layout(layout))
        except ValueError:
            return None
        return stages if len(stages) % pp == 0 else None
    vpp = _virtual_stages(settings, num_layers, pp)
    if not num_layers or vpp is None or pp * vpp > MAX_CHUNKS:
        return None
    first = number(settings, "--decoder-first-pipeline-num-layers")
    last = number(settings, "--decoder-last-pipeline-num-layers")
    if first is not None or last is not None:
        return given_ends(num_layers, pp, vpp, first=first, last=last)
    embedding, loss = accounted(settings)
    if embedding or loss:
        return short_ends(num_layers, pp, vpp, embedding=embedding, loss=loss)
    return even_chunks(num_layers, pp, vpp)


def accounted(settings: Settings) -> tuple[bool, bool]:
    """Whether embedding and loss count as a layer each."""
    return (
        is_on(settings, "--account-for-embedding-in-pipeline-split"),
        is_on(settings, "--account-for-loss-in-pipeline-split"),
    )


def _virtual_stages(settings: Settings, num_layers: int, pp: int) -> int | None:
    """Chunks per stage; None where layers do not divide into chunks of the size given."""
    size = number(settings, "--num-layers-per-virtual-pipeline-stage")
    if size is None:
        return whole(settings, "--num-virtual-stages-per-pipeline-rank")
    layers = num_layers + sum(accounted(settings))
    if size < 1 or layers % (pp * size):
        return None
    return layers // (pp * size)


def _is_even(settings: Settings) -> bool:
    """Nothing makes stages or chunks differ."""
    ends = ("--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers")
    is_split = bool(text(settings, "--pipeline-model-parallel-layout"))
    is_split |= any(number(settings, option) is not None for option in ends)
    return not is_split and not any(accounted(settings))


def _recomputed_alike(settings: Settings, pp: int) -> Iterator[tuple[str, Value]]:
    """What happens in equal chunks of layers whose number is the recipe's."""
    for name, value in _recomputed(settings, (MAX_CHUNKS,), (MAX_CHUNKS,) * min(pp, 2)):
        if name in COUNTS:
            number = value.value[0]
            alike = ALL if number == MAX_CHUNKS else PerChunk(number)
            yield name, replace(value, value=alike)
        else:
            yield name, value


def _recomputed(
    settings: Settings, chunks: Sequence[int], layers: tuple[int, ...]
) -> Iterator[tuple[str, Value]]:
    granularity = text(settings, "--recompute-granularity")
    if is_on(settings, "--recompute-activations"):
        granularity = "selective"
    if granularity == "selective":
        yield "selective_layers_per_stage", _at(settings, "--recompute-granularity", layers)
        modules = names(settings, "--recompute-modules", ("core_attn",))
        yield "recompute_modules", _at(settings, "--recompute-modules", modules)
    elif granularity == "full":
        full = layers
        if text(settings, "--recompute-method") == "block":
            most = whole(settings, "--recompute-num-layers", 0)
            full = per_stage([min(n, most) for n in chunks], len(layers))
        yield "recompute_layers_per_stage", _at(settings, "--recompute-num-layers", full)
    offloaded = whole(settings, "--cpu-offloading-num-layers", 0)
    if offloaded > 0 and len(layers) == 1:
        counts = (min(offloaded, layers[0]),)
        yield "offloaded_layers_per_stage", _at(settings, "--cpu-offloading-num-layers", counts)


def _data_parallel(settings: Settings, num_gpus: Value) -> dict[str, Value]:
    if left_open(settings):
        return {}
    inner = whole(settings, DEGREE_TP) * whole(settings, "--pipeline-model-parallel-size")
    inner *= whole(settings, "--context-parallel-size")
    if num_gpus.value % inner:
        return {}
    dp = num_gpus.value // inner
    found = {"dp": Value(value=dp, key=num_gpus.key, line=num_gpus.line)}
    micro = whole(settings, "--micro-batch-size", 0)
    if not micro:
        return found
    batch = whole(settings, "--global-batch-size", micro * dp)
    option = "--global-batch-size"
    if option not in settings:
        found["global_batch"] = Value(value=batch, key=option)
    if batch % (micro * dp) == 0:
        found["num_micro_batches"] = _at(settings, option, batch // (micro * dp))
    return found
