"""Rules that torchtitan's configuration, trainer and mesh enforce, and those they miss."""

from dataclasses import dataclass
from math import prod

from planner.formats.format import World
from planner.formats.rules import ConfigView, Rules, Violations
from planner.formats.settings import Settings
from planner.formats.torchtitan import keys as key
from planner.formats.torchtitan.keys import POLICY, SELECTORS, Config, config_of, filled
from planner.formats.torchtitan.old import RELEASE

BALANCER = "parallelism.context_parallel_load_balancer"
BATCH_INVARIANT = "debug.batch_invariant"
TYPE_CHECKS = "debug.spmd_typechecking"
SYNCHRONOUS = ("AllToAllTokenDispatcher", "DeepEPTokenDispatcher", "HybridEPTokenDispatcher")
BALANCERS = ("headtail", "ptrr")
_OTHERS = ("dp_replicate", "cp", "tp", "pp")
"""Degrees that make the processes with that of the shards."""


_DIMS = "torchtitan/distributed/parallel_dims.py"
_TRAINER = "torchtitan/trainer.py"
_DECODER = "torchtitan/models/common/decoder.py"


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
    def compiles_blocks(self) -> bool:
        """Whether torch.compile takes the blocks."""
        return bool(self[key.COMPILE]) and "model" in self[key.COMPONENTS]


def of_release(settings: Settings, world: World) -> TorchtitanView | None:
    """What rules ask of a file of this release; None for older ones."""
    return None if RELEASE in settings else TorchtitanView(settings=filled(settings), world=world)


rule = Rules(of_release)


@rule("torchtitan/config/manager.py")
def config_is_named(file: TorchtitanView) -> Violations:
    """A module and one of its configs are named."""
    missing = [name for name in SELECTORS if name not in file.settings]
    if missing:
        both = ", as is --config" if len(missing) > 1 else ""
        yield missing[0], f"missing{both}; torchtitan needs --module and --config"


@rule(_DIMS)
def degrees_are_positive(file: TorchtitanView) -> Violations:
    """Every degree is at least 1; that of the shards may be -1 for what the others leave."""
    for name in key.DEGREES.values():
        if file[name] < 1:
            yield name, f"{file[name]} given; needs 1 or more"
    shards = file[key.SHARD]
    if shards < 1 and shards != -1:
        yield key.SHARD, f"{shards} given; needs 1 or more, or -1"


@rule(_DIMS)
def degrees_make_world(file: TorchtitanView) -> Violations:
    """Replicas x shards x cp x tp x pp are the processes."""
    names = (key.SHARD, *(key.DEGREES[name] for name in _OTHERS))
    is_known = file.config.is_known or all(file.settings[name].line for name in names)
    shards, others, wanted = file.shards, file.others, file.world.num_gpus
    if is_known and others > 0 and file[key.SHARD] != 0 and shards * others != wanted:
        given = f"{shards} shards x {others} of the other degrees = {shards * others}"
        yield key.SHARD, f"{given}; needs {wanted} processes"


@rule(_DIMS)
def experts_fit_shards(file: TorchtitanView) -> Violations:
    """Expert parallelism divides shards x cp x tp, whose ranks it takes."""
    ep, inner = file.degree("ep"), file.shards * file.degree("cp") * file.degree("tp")
    if ep > 1 and inner % ep:
        yield key.DEGREES["ep"], f"{ep} given; needs a divisor of shards x cp x tp = {inner}"


@rule(
    "not checked: torchtitan/models/common/moe_sharding.py splits experts over the ranks",
    enforced=False,
)
def experts_are_whole(file: TorchtitanView) -> Violations:
    """Expert parallelism divides the experts."""
    ep, experts = file.degree("ep"), file.model("num_experts")
    if ep > 1 and experts and experts % ep:
        yield key.DEGREES["ep"], f"{ep} given; needs a divisor of {experts} experts"


@rule(
    "not checked: torchtitan/config/configs.py says no effect for other models",
    enforced=False,
    severity="warning",
)
def experts_exist(file: TorchtitanView) -> Violations:
    """Expert parallelism needs a mixture: torchtitan ignores it for other models."""
    ep = file.degree("ep")
    if ep > 1 and not file.model("num_experts") and file.model("num_layers"):
        yield key.DEGREES["ep"], f"{ep} given; the model has no experts"


@rule(_DECODER)
def tp_divides_heads(file: TorchtitanView) -> Violations:
    """Tensor parallelism divides query heads and heads of keys and values."""
    tp = file.degree("tp")
    for name, what in (("num_heads", "heads"), ("num_kv_heads", "key and value heads")):
        heads = file.model(name)
        if tp > 1 and heads % tp:
            yield key.DEGREES["tp"], f"{tp} given; needs a divisor of {heads} {what}"


@rule(_TRAINER)
def sequence_is_divided(file: TorchtitanView) -> Violations:
    """The sequence is cut into tp pieces under sequence parallelism, 2 x cp under cp."""
    cp, tp, length = file.degree("cp"), file.degree("tp"), file[key.SEQ_LEN]
    pieces = (tp if file[key.SEQUENCE_PARALLEL] else 1) * (2 * cp if cp > 1 else 1)
    if pieces > 1 and length % pieces:
        yield key.SEQ_LEN, f"{length} given; needs a multiple of {pieces}"


@rule(_DECODER)
def sequence_fits_rotary(file: TorchtitanView) -> Violations:
    """The sequence is no longer than the config's rotary embedding."""
    most, length = file.config.max_seq_len, file[key.SEQ_LEN]
    if most and length > most:
        yield key.SEQ_LEN, f"{length} given; the config allows {most}"


@rule(_TRAINER)
def batch_is_divided(file: TorchtitanView) -> Violations:
    """The global batch is a multiple of the local one times data parallelism."""
    total, local = file[key.GLOBAL_BATCH], file[key.LOCAL_BATCH]
    step = local * file.degree("dp_replicate") * file.shards
    if total >= 0 and step > 0 and (total == 0 or total % step):
        message = f"{total} given; needs a multiple of {local} x data parallelism = {step}"
        yield key.GLOBAL_BATCH, message


@rule(_TRAINER)
def graphs_without_pipeline(file: TorchtitanView) -> Violations:
    """CUDA graphs are switched off under pipelining."""
    pp = file.degree("pp")
    if pp > 1 and not file[key.CUDA_GRAPHS]:
        yield key.CUDA_GRAPHS, f"not set with {pp} pipeline stages; needs to be"


@rule(_TRAINER)
def graphs_without_experts(file: TorchtitanView) -> Violations:
    """CUDA graphs are switched off where expert parallelism waits for the host."""
    ep, dispatcher = file.degree("ep"), file.config.dispatcher
    if ep > 1 and dispatcher in SYNCHRONOUS and not file[key.CUDA_GRAPHS]:
        message = f"not set with expert parallelism {ep} over {dispatcher}; needs to be"
        yield key.CUDA_GRAPHS, message


@rule(
    "torchtitan/config/configs.py",
    key=key.ASYNC_TP,
    says="set; needs --compile.enable and model among its components",
)
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


@rule(_TRAINER)
def type_checks_without_pipeline(file: TorchtitanView) -> Violations:
    """Type checks of sharding cannot run under pipelining."""
    pp, backend = file.degree("pp"), file[key.SPMD_BACKEND]
    if pp > 1 and backend == "spmd_types" and file[TYPE_CHECKS]:
        yield TYPE_CHECKS, f"set with {pp} pipeline stages; needs one stage"


@rule(_TRAINER, key=BATCH_INVARIANT, says="set; training needs it to be off")
def batches_may_vary(file: TorchtitanView) -> bool:
    """Batch-invariant mode is not for pre-training."""
    return bool(file[BATCH_INVARIANT])


@rule("torchtitan/models/*/model.py")
def context_needs_flex(file: TorchtitanView) -> Violations:
    """Context parallelism does not run with attention over variable lengths."""
    cp, attention = file.degree("cp"), file.config.attention
    if cp > 1 and attention == "VarlenAttention":
        yield key.DEGREES["cp"], f"{cp} given; the config's attention ({attention}) allows 1"


@rule(
    "not checked at the start: torchtitan/distributed/context_parallel/api.py, first step",
    key=BALANCER,
    says=f"{{given!r}} given; allowed are {', '.join(BALANCERS)}, None",
    enforced=False,
)
def balancer_is_known(file: TorchtitanView) -> bool:
    """The load balancer of context parallelism is one of torch's."""
    value = file[BALANCER]
    return bool(file.degree("cp") > 1 and value and value not in BALANCERS)


@rule(
    "torchtitan/config/configs.py",
    key=BALANCER,
    says=f"empty; allowed are {', '.join(BALANCERS)}, None",
)
def balancer_is_named(file: TorchtitanView) -> bool:
    """No load balancer is spelled None, not as an empty word."""
    return bool(file[BALANCER] == "")


@rule(_TRAINER, key=key.MICRO_BATCH, says="{given} given; needs 1 or more")
def micro_batch_is_positive(file: TorchtitanView) -> bool:
    """A micro-batch of the pipeline holds a sequence at least."""
    return bool(file[key.MICRO_BATCH] < 1)
