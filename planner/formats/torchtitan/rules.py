"""Rules that torchtitan's configuration, trainer and mesh enforce, and those they miss."""

from collections import Counter
from dataclasses import dataclass
from math import prod

from planner.formats.format import CheckContext, FormatRule, listed
from planner.formats.rules import ConfigView, Refused, Rules
from planner.formats.settings import Settings
from planner.formats.torchtitan import keys as key
from planner.formats.torchtitan.keys import POLICY, SELECTORS, Config, config_of, filled
from planner.formats.torchtitan.layout import (
    OTHER_SCHEDULES,
    SCHEDULE_NAMES,
    SINGLE,
    default_counts,
    layers_in,
    num_parts,
    schedule_named,
    splits_backward,
)
from planner.formats.torchtitan.old import RELEASE
from planner.spec.strategy import V_SHAPED

BALANCER = "parallelism.context_parallel_load_balancer"
BATCH_INVARIANT = "debug.batch_invariant"
TYPE_CHECKS = "debug.spmd_typechecking"
PP, EP, CP = (key.DEGREES[name] for name in ("pp", "ep", "cp"))
BALANCERS = ("headtail", "ptrr")
# Degrees that make the processes with that of the shards.
_OTHERS = ("dp_replicate", "cp", "tp", "pp")
_CONFIGS = "torchtitan/config/configs.py"
_DIMS = "torchtitan/distributed/parallel_dims.py"
_TRAINER = "torchtitan/trainer.py"
_DECODER = "torchtitan/models/common/decoder.py"
_PIPELINE = "torchtitan/distributed/pipeline_parallel.py"
_SCHEDULES = "torch/distributed/pipelining/schedules.py"


@dataclass(frozen=True, kw_only=True)
class TorchtitanView(ConfigView):
    """A file of this release, with the config's defaults, which have no line."""

    def spelled(self, key: str) -> str:
        """An option as the file spells it."""
        return super().spelled(key) if key in self.settings else f"--{key}"

    def degree(self, name: str) -> int:
        """A degree by the name in Strategy."""
        return key.degree(self.settings, name)

    def model(self, name: str) -> int:
        """A size of the model by the name in ModelSpec; 0 where it is not known."""
        own = self.config.model
        found = self.world.decisions.get(f"model.{name}") or own.get(name)
        return int(found or own.get(f"moe.{name}") or 0)

    @property
    def config(self) -> Config:
        """The config that is named."""
        return config_of(self.settings)

    @property
    def others(self) -> int:
        """All degrees but the shards, which make up the processes with them."""
        return prod(map(self.degree, _OTHERS))

    @property
    def shards(self) -> int:
        """Shards of data parallelism: what is given, or what the other degrees leave."""
        given = int(self[key.SHARD])
        return given if given != -1 else self.world.num_gpus // max(1, self.others)

    @property
    def expert_ranks(self) -> int:
        """Ranks that expert parallelism is taken from."""
        return self.shards * self.degree("cp") * self.degree("tp")

    @property
    def compiles_blocks(self) -> bool:
        """True if torch.compile compiles the blocks."""
        return bool(self[key.COMPILE]) and "model" in self[key.COMPONENTS]

    @property
    def pp(self) -> int:
        """Stages of the pipeline."""
        return self.degree("pp")

    @property
    def schedule(self) -> str:
        """The planner's name of the schedule; empty: torch has none of that name."""
        return schedule_named(str(self[key.SCHEDULE]))

    @property
    def parts(self) -> int:
        """Model parts that are listed, or that torchtitan makes; 0: not known."""
        listed, layers, per_part = self[key.PARTS], self.model("num_layers"), self[key.LAYERS]
        if listed is not None:
            return len(listed)
        if per_part is not None and (per_part < 1 or not layers):
            return 0
        less = self[key.FIRST_LESS], self[key.LAST_LESS]
        return num_parts(layers, self.pp, self.schedule, per_part, *less)

    @property
    def decides_parts(self) -> str:
        """The key that says how many model parts there are."""
        return key.LAYERS if self[key.PARTS] is None else key.PARTS

    @property
    def micro_batches(self) -> int:
        """Micro-batches of one step of the pipeline; 0 if the batch is not divided."""
        size, local = self[key.MICRO_BATCH], self[key.LOCAL_BATCH]
        return int(local // size) if size > 0 and local % size == 0 else 0

    @property
    def rounds(self) -> int:
        """Equal rounds in which interleaved schedules run the micro-batches."""
        return max(1, self.micro_batches // self.pp)


def of_release(settings: Settings, world: CheckContext) -> TorchtitanView | None:
    """Return the view of a file of this release for rules; None for older ones."""
    return None if RELEASE in settings else TorchtitanView(settings=filled(settings), world=world)


def of_pipeline(settings: Settings, world: CheckContext) -> TorchtitanView | None:
    """The same of a file with several stages; None for others."""
    file = of_release(settings, world)
    return file if file and file.pp > 1 else None


rule, pipelined = Rules(of_release), Rules(of_pipeline)


@rule("torchtitan/config/manager.py", says="missing; torchtitan needs --module and --config")
def config_is_named(file: TorchtitanView) -> list[str]:
    """A module and one of its configs are named."""
    return [name for name in SELECTORS if name not in file.settings][:1]


@rule(_DIMS, says="{given} given; needs 1 or more, shards also -1")
def degrees_are_positive(file: TorchtitanView) -> list[str]:
    """Every degree is at least 1; that of the shards may be -1 for what the others leave."""
    shards = () if file[key.SHARD] == -1 else (key.SHARD,)
    return [name for name in (*key.DEGREES.values(), *shards) if file[name] < 1]


@rule(_DIMS, key=key.SHARD)
def degrees_make_world(file: TorchtitanView) -> Refused:
    """Replicas x shards x cp x tp x pp are the processes."""
    names = (key.SHARD, *(key.DEGREES[name] for name in _OTHERS))
    is_known = file.config.is_known or all(file.settings[name].line for name in names)
    shards, others, wanted = file.shards, file.others, file.world.num_gpus
    given = f"{shards} shards x {others} of the other degrees = {shards * others}"
    is_sound = others > 0 and file[key.SHARD] != 0
    return {
        f"{given}; needs {wanted} processes": is_known and is_sound and shards * others != wanted
    }


@rule(
    _DIMS, key=EP, says="{given} given; needs a divisor of shards x cp x tp = {file.expert_ranks}"
)
def experts_fit_shards(file: TorchtitanView) -> bool:
    """Expert parallelism divides shards x cp x tp, whose ranks it takes."""
    ep = file.degree("ep")
    return ep > 1 and file.expert_ranks % ep != 0


@rule.unenforced(
    "not checked: torchtitan/models/common/moe_sharding.py splits experts over the ranks",
    key=EP,
)
def experts_are_whole(file: TorchtitanView) -> Refused:
    """Expert parallelism divides the experts."""
    ep, experts = file.degree("ep"), file.model("num_experts")
    return {f"{ep} given; needs a divisor of {experts} experts": ep > 1 and experts % ep}


@rule.unenforced(
    "not checked: torchtitan/config/configs.py says no effect for other models",
    key=EP,
    says="{given} given; the model has no experts",
    severity="warning",
)
def experts_exist(file: TorchtitanView) -> bool:
    """Expert parallelism needs a mixture: torchtitan ignores it for other models."""
    is_dense = file.model("num_layers") > 0 and not file.model("num_experts")
    return file.degree("ep") > 1 and is_dense


@rule(_DECODER, key=key.DEGREES["tp"])
def tp_divides_heads(file: TorchtitanView) -> Refused:
    """Tensor parallelism divides query heads and heads of keys and values."""
    tp, names = file.degree("tp"), {"num_heads": "heads", "num_kv_heads": "key and value heads"}
    heads = {what: file.model(name) for name, what in names.items()}
    return {
        f"{tp} given; needs a divisor of {number} {what}": tp > 1 and number % tp
        for what, number in heads.items()
    }


@rule(_TRAINER, key=key.SEQ_LEN)
def sequence_is_divided(file: TorchtitanView) -> Refused:
    """The sequence is cut into tp pieces under sequence parallelism, 2 x cp under cp."""
    cp, length = file.degree("cp"), file[key.SEQ_LEN]
    tp = file.degree("tp") if file[key.SEQUENCE_PARALLEL] else 1
    pieces = tp * (2 * cp if cp > 1 else 1)
    return {f"{length} given; needs a multiple of {pieces}": pieces > 1 and length % pieces}


@rule(_DECODER, key=key.SEQ_LEN, says="{given} given; the config allows {file.config.max_seq_len}")
def sequence_fits_rotary(file: TorchtitanView) -> bool:
    """The sequence is no longer than the config's rotary embedding."""
    return bool(0 < file.config.max_seq_len < file[key.SEQ_LEN])


@rule(_TRAINER, key=key.GLOBAL_BATCH)
def batch_is_divided(file: TorchtitanView) -> Refused:
    """The global batch is a multiple of the local one times data parallelism."""
    total, local = file[key.GLOBAL_BATCH], file[key.LOCAL_BATCH]
    step = local * file.degree("dp_replicate") * file.shards
    is_uneven = total >= 0 and step > 0 and (total == 0 or total % step)
    return {f"{total} given; needs a multiple of {local} x data parallelism = {step}": is_uneven}


@rule(_TRAINER, key=key.CUDA_GRAPHS, says="not set with {file.pp} pipeline stages; needs to be")
def graphs_without_pipeline(file: TorchtitanView) -> bool:
    """CUDA graphs are switched off under pipelining."""
    return file.pp > 1 and not file[key.CUDA_GRAPHS]


@rule(_TRAINER, key=key.CUDA_GRAPHS)
def graphs_without_experts(file: TorchtitanView) -> Refused:
    """CUDA graphs are switched off where expert parallelism waits for the host."""
    ep, dispatcher = file.degree("ep"), file.config.dispatcher
    waits = ("AllToAllTokenDispatcher", "DeepEPTokenDispatcher", "HybridEPTokenDispatcher")
    message = f"not set with expert parallelism {ep} over {dispatcher}; needs to be"
    return {message: ep > 1 and dispatcher in waits and not file[key.CUDA_GRAPHS]}


@rule(_CONFIGS, key=key.ASYNC_TP, says="set; needs --compile.enable and model among its components")
def async_tp_is_compiled(file: TorchtitanView) -> bool:
    """Asynchronous tensor parallelism needs compiled blocks."""
    return bool(file[key.ASYNC_TP] and not file.compiles_blocks)


@rule(
    _TRAINER,
    key=POLICY,
    says="memory-budget given; needs --compile.enable and model among its components",
)
def budget_is_compiled(file: TorchtitanView) -> bool:
    """A memory budget for activations needs compiled blocks."""
    return file[POLICY] == "memory_budget" and not file.compiles_blocks


@rule(_TRAINER, key=TYPE_CHECKS, says="set with {file.pp} pipeline stages; needs one stage")
def type_checks_without_pipeline(file: TorchtitanView) -> bool:
    """Type checks of sharding cannot run under pipelining."""
    return file.pp > 1 and file[key.SPMD_BACKEND] == "spmd_types" and bool(file[TYPE_CHECKS])


@rule(_TRAINER, key=BATCH_INVARIANT, says="set; training needs it to be off")
def batches_may_vary(file: TorchtitanView) -> bool:
    """Batch-invariant mode is not for pre-training."""
    return bool(file[BATCH_INVARIANT])


@rule(
    "torchtitan/models/*/model.py",
    key=CP,
    says="{given} given; the config's attention ({file.config.attention}) allows 1",
)
def context_needs_flex(file: TorchtitanView) -> bool:
    """Context parallelism does not run with attention over variable lengths."""
    return file.degree("cp") > 1 and file.config.attention == "VarlenAttention"


@rule.unenforced(
    "not checked at the start: torchtitan/distributed/context_parallel/api.py, first step",
    key=BALANCER,
    says=f"{{given!r}} given; allowed are {', '.join(BALANCERS)}, None",
)
def balancer_is_known(file: TorchtitanView) -> bool:
    """The load balancer of context parallelism is one of torch's."""
    value = file[BALANCER]
    return bool(file.degree("cp") > 1 and value and value not in BALANCERS)


@rule(_CONFIGS, key=BALANCER, says=f"empty; allowed are {', '.join(BALANCERS)}, None")
def balancer_is_named(file: TorchtitanView) -> bool:
    """No load balancer is spelled None, not as an empty word."""
    return bool(file[BALANCER] == "")


@rule(_TRAINER, key=key.MICRO_BATCH, says="{given} given; needs 1 or more")
def micro_batch_is_positive(file: TorchtitanView) -> bool:
    """A micro-batch of the pipeline holds a sequence at least."""
    return bool(file[key.MICRO_BATCH] < 1)


@pipelined(_TRAINER, key=key.MICRO_BATCH)
def micro_batch_divides_local(file: TorchtitanView) -> Refused:
    """Micro-batches of the pipeline make up the local batch."""
    size, local = file[key.MICRO_BATCH], file[key.LOCAL_BATCH]
    message = f"{size} given; needs a divisor of the local batch {local}"
    return {message: size > 0 and local % size}


@pipelined(
    _SCHEDULES,
    key=key.SCHEDULE,
    says=(
        f"{{given!r}} given; allowed are {', '.join((*SCHEDULE_NAMES.values(), *OTHER_SCHEDULES))}"
    ),
)
def schedule_is_known(file: TorchtitanView) -> bool:
    """The schedule is one of torch's."""
    return not file.schedule


@pipelined(
    _DECODER, key=PP, says="{file.pp} given; the config ties embedding and head, which allows 1"
)
def tied_model_has_one_stage(file: TorchtitanView) -> bool:
    """Models with tied embeddings are not pipelined."""
    return bool(file.config.model.get("tied_embeddings"))


@pipelined(_PIPELINE, says="{file.parts} model parts; needs a multiple of {file.pp} stages")
def stages_fill_ranks(file: TorchtitanView) -> list[str]:
    """Model parts are dealt out evenly over the pipeline's ranks."""
    return [file.decides_parts] if file.parts % file.pp else []


@pipelined(_PIPELINE, key=key.LAYERS)
def stages_fit_schedule(file: TorchtitanView) -> Refused:
    """1F1B and GPipe take one part per rank where the number follows from layers per stage.

    Interleaved schedules then take two at least.
    """
    each, rest = divmod(file.parts, file.pp)
    is_computed = file[key.PARTS] is None and file[key.LAYERS] and each and not rest
    is_single, is_known = file.schedule in SINGLE, file.schedule not in ("", "other")
    is_short = is_known and not is_single and each < 2
    return {
        f"{each} model parts per rank; the schedule takes 1": (
            is_computed and is_single and each != 1
        ),
        f"{each} model part per rank; the schedule needs 2": is_computed and is_short,
    }


@pipelined.unenforced(
    "not checked: torchtitan/distributed/pipeline_parallel.py hands on the first part only",
    key=key.PARTS,
    says="{file.parts} model parts; the schedule takes one per rank, {file.pp}",
)
def listed_parts_fit_schedule(file: TorchtitanView) -> bool:
    """1F1B and GPipe run the first listed part of every rank, and forget the others."""
    return len(file[key.PARTS] or ()) > file.pp and file.schedule in SINGLE


@pipelined(_PIPELINE, says="{file.parts} model parts, {file.pp} stages; the schedule takes 2 each")
def v_schedule_has_two_parts(file: TorchtitanView) -> list[str]:
    """V-shaped schedules take two model parts per rank."""
    each, rest = divmod(file.parts, file.pp)
    is_wrong = file.schedule in V_SHAPED and each not in (0, 2) and not rest
    return [file.decides_parts] if is_wrong else []


@pipelined(_SCHEDULES, key=key.LOCAL_BATCH)
def micro_batches_fill_pipeline(file: TorchtitanView) -> Refused:
    """1F1B needs as many micro-batches as stages, DualPipeV as many as model parts."""
    least = {"1f1b": file.pp, "dualpipe-v": file.parts}.get(file.schedule, 0)
    given = f"{file[key.LOCAL_BATCH]} given, {file.micro_batches} micro-batches"
    is_short = file.micro_batches != 0 and file.micro_batches < least
    return {f"{given}; the schedule needs {least}": is_short}


@pipelined(
    _SCHEDULES,
    key=key.LOCAL_BATCH,
    says="{file.micro_batches} micro-batches; "
    "interleaving needs a multiple of {file.rounds} rounds",
)
def micro_batches_make_rounds(file: TorchtitanView) -> bool:
    """Interleaved schedules run micro-batches in equal rounds of at least one per stage."""
    is_uneven = file.micro_batches % file.rounds != 0
    return is_uneven and file.schedule in ("interleaved", "zb-interleaved")


@pipelined.unenforced(
    f"not checked: {_SCHEDULES} looks for wrapped modules, blocks are compiled in place",
    key=key.SCHEDULE,
    says="{given} given with compiled blocks; needs --compile.no-enable",
    severity="warning",
)
def split_backward_is_eager(file: TorchtitanView) -> bool:
    """Schedules that split the backward do not run compiled blocks."""
    return file.compiles_blocks and splits_backward(file.schedule)


@pipelined(_PIPELINE, key=key.FIRST_LESS)
def stage_weights_fit(file: TorchtitanView) -> Refused:
    """Embedding and head weigh no more layers than a model part has, and every part has some."""
    layers, parts = file.model("num_layers"), file.parts
    first, last = file[key.FIRST_LESS], file[key.LAST_LESS]
    is_computed = layers and parts and file[key.PARTS] is None
    given = f"{parts} model parts of {layers} layers, embedding {first} and head {last}"
    is_refused = is_computed and default_counts(layers, parts, first, last) is None
    return {f"{given}; a part needs a layer and its weight": is_refused}


@pipelined.unenforced(
    "not checked: torchtitan/distributed/pipeline_parallel.py keeps the layers it is told",
    key=key.PARTS,
)
def parts_hold_all_layers(file: TorchtitanView) -> Refused:
    """Every layer stands in one model part; torchtitan drops those that are missing."""
    layers = file.model("num_layers")
    counts = Counter(layer for part in file[key.PARTS] or () for layer in layers_in(part))
    wrong = [layer for layer in range(layers) if counts[layer] != 1]
    wrong += [layer for layer in counts if layer >= layers]
    names = listed([f"layers.{layer}" for layer in wrong])
    message = f"{names} not in exactly one part; the model has layers.0 to {layers - 1}"
    return {message: file[key.PARTS] is not None and layers and wrong}


@pipelined.unenforced(
    "not checked: torchtitan/distributed/pipeline_parallel.py, fails in the first step",
    key=key.PARTS,
)
def parts_hold_both_ends(file: TorchtitanView) -> Refused:
    """The first model part holds the embedding, the last one the norm and the head."""
    ends = (("tok_embeddings", 0, "first"), ("norm", -1, "last"), ("lm_head", -1, "last"))
    return {
        f"{name} is not in the {where} part; it must be": name not in file[key.PARTS][at]
        for name, at, where in (ends if file[key.PARTS] else ())
    }


RULES: tuple[FormatRule, ...] = (*rule, *pipelined)
