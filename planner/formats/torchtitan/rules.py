"""Rules that torchtitan's configuration, trainer and mesh enforce, and those they miss."""

from collections import Counter
from functools import partial

from planner.formats.format import CheckContext, FormatRule, listed
from planner.formats.settings import Refused, Rules, Settings, Violations
from planner.formats.torchtitan import keys as key
from planner.formats.torchtitan.keys import POLICY, SELECTORS, TorchtitanView, filled
from planner.formats.torchtitan.read import RELEASE
from planner.spec.strategy import V_SHAPED

BALANCER = "parallelism.context_parallel_load_balancer"
PP, EP, CP = (key.DEGREES[name] for name in ("pp", "ep", "cp"))
_CONFIGS = "torchtitan/config/configs.py"
_DIMS = "torchtitan/distributed/parallel_dims.py"
_TRAINER = "torchtitan/trainer.py"
_DECODER = "torchtitan/models/common/decoder.py"
_PARTS = "distributed/pipeline_parallel.py"
_PIPELINE = f"torchtitan/{_PARTS}"
_SCHEDULES = "torch/distributed/pipelining/schedules.py"
_WAITING = ("AllToAllTokenDispatcher", "DeepEPTokenDispatcher", "HybridEPTokenDispatcher")
_UNCHECKED = "not checked: torchtitan/"


def of_release(settings: Settings, world: CheckContext) -> TorchtitanView | None:
    """Return the view of a file of this release for rules; None for older ones."""
    return None if RELEASE in settings else TorchtitanView(settings=filled(settings), world=world)


def of_pipeline(settings: Settings, world: CheckContext) -> TorchtitanView | None:
    """The same of a file with several stages; None for others."""
    file = of_release(settings, world)
    return file if file and file.pp > 1 else None


rule, pipelined = Rules(of_release), Rules(of_pipeline)
in_trainer = partial(rule, _TRAINER)


rule(
    "torchtitan/config/manager.py",
    name="config_is_named",
    holds="Missing; torchtitan needs --module and --config.",
    when=lambda file: [name for name in SELECTORS if name not in file.settings][:1],
)


# -1 shards are what the other degrees leave.
rule(
    _DIMS,
    name="degrees_are_positive",
    holds="{given} given; needs 1 or more, shards also -1.",
    when=lambda file: [
        name
        for name in (*key.DEGREES.values(), key.SHARD)
        if file[name] < 1 and (name, file[name]) != (key.SHARD, -1)
    ],
)


@rule(_DIMS)
def degrees_make_world(file: TorchtitanView) -> Violations:
    """Replicas x shards x cp x tp x pp are the processes."""
    # All degrees but that of experts, which are taken from the others.
    names = [name for name in key.DEGREES.values() if name != EP]
    is_stated = all(file.settings[name].line for name in (key.SHARD, *names))
    is_known = file.config.is_known or is_stated
    shards, others, wanted = file.shards, file.others, file.num_gpus
    if is_known and others > 0 and file[key.SHARD] != 0 and shards * others != wanted:
        # Shards of -1 take what the others leave.
        place = key.SHARD if file[key.SHARD] > 0 else max(names, key=lambda name: file[name])
        given = f"{shards} shards x {others} of the other degrees = {shards * others}"
        yield place, f"{given}; needs {wanted} processes"


rule(
    _DIMS,
    EP,
    "experts_fit_shards",
    "{given} given; needs a divisor of shards x cp x tp = {file.expert_ranks}",
    lambda file: file.ep > 1 and file.expert_ranks % file.ep > 0,
)


rule.unenforced(
    f"{_UNCHECKED}models/common/moe_sharding.py splits experts over the ranks",
    EP,
    "experts_are_whole",
    "Expert parallelism divides the experts.",
    lambda file: {
        f"{file.ep} given; needs a divisor of {number} experts": file.ep > 1 and number % file.ep
        for number in [file.model("num_experts")]
    },
)


rule.unenforced(
    f"{_UNCHECKED}config/configs.py says no effect for other models",
    EP,
    "experts_exist",
    "{given} given; the model has no experts",
    lambda file: file.ep > 1 and file.model("num_layers") > 0 and not file.model("num_experts"),
    severity="warning",
)


@rule(_DECODER, key.DEGREES["tp"])
def tp_divides_heads(file: TorchtitanView) -> Refused:
    """Tensor parallelism divides query heads and heads of keys and values."""
    tp = file.tp
    heads, groups = file.model("num_heads"), file.model("num_kv_heads")
    needed = f"{tp} given; needs a divisor of"
    return {
        f"{needed} {heads} heads": tp > 1 and heads % tp,
        f"{needed} {groups} key and value heads": tp > 1 and groups % tp,
    }


@in_trainer("training.seq_len")
def sequence_is_divided(file: TorchtitanView) -> Refused:
    """The sequence is cut into tp pieces under sequence parallelism, 2 x cp under cp."""
    cp, length = file.cp, file["training.seq_len"]
    tp = file.tp if file[key.SEQUENCE_PARALLEL] else 1
    pieces = tp * (2 * cp if cp > 1 else 1)
    return {f"{length} given; needs a multiple of {pieces}": pieces > 1 and length % pieces}


rule(
    _DECODER,
    "training.seq_len",
    "sequence_fits_rotary",
    "{given} given; the config allows {file.config.max_seq_len}",
    lambda file: 0 < file.config.max_seq_len < file["training.seq_len"],
)


@in_trainer(key.GLOBAL_BATCH)
def batch_is_divided(file: TorchtitanView) -> Refused:
    """The global batch is a multiple of the local one times data parallelism."""
    total, local = file[key.GLOBAL_BATCH], file[key.LOCAL_BATCH]
    step = local * file.dp_replicate * file.shards
    is_uneven = total >= 0 and step > 0 and (total == 0 or total % step)
    return {f"{total} given; needs a multiple of {local} x data parallelism = {step}": is_uneven}


in_trainer(
    key.CUDA_GRAPHS,
    "graphs_without_pipeline",
    "not set with {file.pp} pipeline stages; needs to be",
    lambda file: file.pp > 1 and not file[key.CUDA_GRAPHS],
)


in_trainer(
    key.CUDA_GRAPHS,
    "graphs_without_experts",
    "not set with expert parallelism {file.ep} over {file.config.dispatcher}; needs to be",
    lambda file: file.ep > 1 and file.config.dispatcher in _WAITING and not file[key.CUDA_GRAPHS],
)
rule(
    _CONFIGS,
    key.ASYNC_TP,
    "async_tp_is_compiled",
    "set; needs --compile.enable and model among its components",
    lambda file: not file.compiles_blocks,
    on=key.ASYNC_TP,
)
in_trainer(
    POLICY,
    "budget_is_compiled",
    "memory-budget given; needs --compile.enable and model among its components",
    lambda file: file[POLICY] == "memory_budget" and not file.compiles_blocks,
)
in_trainer(
    "debug.spmd_typechecking",
    "type_checks_without_pipeline",
    "set with {file.pp} pipeline stages; needs one stage",
    lambda file: file.pp > 1 and file[key.SPMD_BACKEND] == "spmd_types",
    on="debug.spmd_typechecking",
)
in_trainer(
    "debug.batch_invariant",
    "batches_may_vary",
    "set; training needs it to be off",
    lambda file: file.is_on("debug.batch_invariant"),
)
rule(
    "torchtitan/models/*/model.py",
    CP,
    "context_needs_flex",
    "{given} given; the config's attention ({file.config.attention}) allows 1",
    lambda file: file.cp > 1 and file.config.attention == "VarlenAttention",
)
rule.unenforced(
    "not checked at the start: torchtitan/distributed/context_parallel/api.py, first step",
    BALANCER,
    "balancer_is_known",
    "{given!r} given; allowed are headtail, ptrr, None",
    lambda file: file.cp > 1 and file[BALANCER] not in ("headtail", "ptrr", "", None),
)
rule(
    _CONFIGS,
    BALANCER,
    "balancer_is_named",
    "empty; allowed are headtail, ptrr, None",
    lambda file: file[BALANCER] == "",
)
in_trainer(
    key.MICRO_BATCH,
    "micro_batch_is_positive",
    "{given} given; needs 1 or more",
    lambda file: file[key.MICRO_BATCH] < 1,
)
pipelined(
    _TRAINER,
    key.MICRO_BATCH,
    "micro_batch_divides_local",
    f"{{given}} given; needs a divisor of the local batch {{file[{key.LOCAL_BATCH}]}}",
    lambda file: file[key.MICRO_BATCH] > 0 and file[key.LOCAL_BATCH] % file[key.MICRO_BATCH] > 0,
)
pipelined(
    _SCHEDULES,
    key.SCHEDULE,
    "schedule_is_known",
    "{given!r} given; allowed are "
    + ", ".join((*key.SCHEDULE_NAMES.values(), *key.OTHER_SCHEDULES)),
    lambda file: not file.schedule,
)
pipelined(
    _DECODER,
    PP,
    "tied_model_has_one_stage",
    "{file.pp} given; the config ties embedding and head, which allows 1",
    lambda file: bool(file.config.model.get("tied_embeddings")),
)
pipelined(
    _PIPELINE,
    name="stages_fill_ranks",
    holds="{file.parts} model parts; needs a multiple of {file.pp} stages.",
    when=lambda file: [file.decides_parts] if file.parts % file.pp else [],
)


@pipelined(_PIPELINE, key.LAYERS)
def stages_fit_schedule(file: TorchtitanView) -> Refused:
    """Where layers per stage give the parts, 1F1B and GPipe take one per rank, others two."""
    each, rest = divmod(file.parts, file.pp)
    is_computed = file[key.PARTS] is None and file[key.LAYERS]
    if not (is_computed and each) or rest or file.schedule in ("", "other"):
        return {}
    is_single = file.schedule in key.SINGLE
    return {
        f"{each} model parts per rank; the schedule takes 1": is_single and each > 1,
        f"{each} model part per rank; the schedule needs 2": not is_single and each < 2,
    }


pipelined.unenforced(
    f"{_UNCHECKED}{_PARTS} hands on the first part only",
    key.PARTS,
    "listed_parts_fit_schedule",
    "{file.parts} model parts; the schedule takes one per rank, {file.pp}",
    lambda file: len(file[key.PARTS] or ()) > file.pp and file.schedule in key.SINGLE,
)


pipelined(
    _PIPELINE,
    name="v_schedule_has_two_parts",
    holds="{file.parts} model parts, {file.pp} stages; the schedule takes 2 each.",
    when=lambda file: [
        file.decides_parts
        for each, rest in [divmod(file.parts, file.pp)]
        if file.schedule in V_SHAPED and each not in (0, 2) and not rest
    ],
)


@pipelined(_SCHEDULES, key.LOCAL_BATCH)
def micro_batches_fill_pipeline(file: TorchtitanView) -> Refused:
    """1F1B needs as many micro-batches as stages, DualPipeV as many as model parts."""
    least = {"1f1b": file.pp, "dualpipe-v": file.parts}.get(file.schedule, 0)
    number = file.micro_batches
    given = f"{file[key.LOCAL_BATCH]} given, {number} micro-batches"
    return {f"{given}; the schedule needs {least}": number != 0 and number < least}


@pipelined(_SCHEDULES, key.LOCAL_BATCH)
def micro_batches_make_rounds(file: TorchtitanView) -> Refused:
    """Interleaved schedules run micro-batches in equal rounds of at least one per stage."""
    number, is_known = file.micro_batches, file.schedule in ("interleaved", "zb-interleaved")
    rounds = max(1, number // file.pp)
    needed = f"interleaving needs a multiple of {rounds} rounds"
    return {f"{number} micro-batches; {needed}": is_known and number % rounds}


pipelined.unenforced(
    f"not checked: {_SCHEDULES} looks for wrapped modules, blocks are compiled in place",
    key.SCHEDULE,
    "split_backward_is_eager",
    "{given} given with compiled blocks; needs --compile.no-enable",
    lambda file: file.compiles_blocks and key.splits_backward(file.schedule),
    severity="warning",
)


@pipelined(_PIPELINE, key.FIRST_LESS)
def stage_weights_fit(file: TorchtitanView) -> Refused:
    """Embedding and head weigh no more layers than a model part has, and every part has some."""
    layers, parts = file.model("num_layers"), file.parts
    first, last = file[key.FIRST_LESS], file[key.LAST_LESS]
    is_computed = layers and parts and file[key.PARTS] is None
    given = f"{parts} model parts of {layers} layers, embedding {first} and head {last}"
    is_refused = is_computed and key.default_counts(layers, parts, first, last) is None
    return {f"{given}; a part needs a layer and its weight": is_refused}


@pipelined.unenforced(f"{_UNCHECKED}{_PARTS} keeps the layers it is told", key.PARTS)
def parts_hold_all_layers(file: TorchtitanView) -> Refused:
    """Every layer stands in one model part; torchtitan drops those that are missing."""
    layers = file.model("num_layers")
    counts = Counter[int]()
    for part in file[key.PARTS] or ():
        counts.update(key.layers_in(part))
    wrong = [layer for layer in range(layers) if counts[layer] != 1]
    wrong += [layer for layer in counts if layer >= layers]
    names = listed([f"layers.{layer}" for layer in wrong])
    message = f"{names} not in exactly one part; the model has layers.0 to {layers - 1}"
    return {message: file[key.PARTS] is not None and layers and wrong}


@pipelined.unenforced(f"{_UNCHECKED}{_PARTS}, fails in the first step", key.PARTS)
def parts_hold_both_ends(file: TorchtitanView) -> Refused:
    """The first model part holds the embedding, the last one the norm and the head."""
    parts = file[key.PARTS]
    if not parts:
        return {}
    return {
        "tok_embeddings is not in the first part; it must be": "tok_embeddings" not in parts[0],
        "norm is not in the last part; it must be": "norm" not in parts[-1],
        "lm_head is not in the last part; it must be": "lm_head" not in parts[-1],
    }


RULES: tuple[FormatRule, ...] = (*rule, *pipelined)
