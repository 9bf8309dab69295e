"""Rules that torchtitan's configuration, trainer and mesh enforce, and those they miss."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import wraps
from math import prod
from typing import Any

from planner.formats.finding import Severity
from planner.formats.format import Broken, FormatRule, World
from planner.formats.settings import Settings, given
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


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A file of this release, with what rules need beside it."""

    settings: Settings
    """With defaults, which have no line."""
    world: World

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401
        """What a key is set to, or the config's default."""
        return given(self.settings, name)

    def degree(self, name: str) -> int:
        """A degree by the name in Strategy."""
        return key.degree(self.settings, name)

    def model(self, name: str) -> int:
        """A size of the model by the name in ModelSpec; 0 where it is not known."""
        own = self.config.model
        found = self.world.decisions.get(f"model.{name}") or own.get(name)
        return int(found or own.get(f"moe.{name}") or 0)

    def broken(self, name: str, message: str) -> Broken:
        """How a rule is broken, with the key as the file spells it."""
        spelled = self.settings[name].key if name in self.settings else f"--{name}"
        return Broken(key=spelled, message=message)

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


Check = Callable[[Judged], Iterable[Broken]]


def rule(
    check: Check, source: str, *, enforced: bool = True, severity: Severity = "error"
) -> FormatRule:
    """The rule of a check, under its name; files of older releases are not judged by it."""

    @wraps(check)
    def judge(settings: Settings, world: World) -> Iterable[Broken]:
        file = Judged(settings=filled(settings), world=world)
        return () if RELEASE in settings else check(file)

    name: str = getattr(check, "__name__", "")
    return FormatRule(name=name, source=source, check=judge, severity=severity, enforced=enforced)


def config_is_named(file: Judged) -> Iterator[Broken]:
    """A module and one of its configs are named."""
    missing = [name for name in SELECTORS if name not in file.settings]
    if missing:
        both = ", as is --config" if len(missing) > 1 else ""
        message = f"missing{both}; torchtitan needs --module and --config"
        yield file.broken(missing[0], message)


def degrees_are_positive(file: Judged) -> Iterator[Broken]:
    """Every degree is at least 1; that of the shards may be -1 for what the others leave."""
    for name in key.DEGREES.values():
        if file[name] < 1:
            yield file.broken(name, f"{file[name]} given; needs 1 or more")
    shards = file[key.SHARD]
    if shards < 1 and shards != -1:
        yield file.broken(key.SHARD, f"{shards} given; needs 1 or more, or -1")


def degrees_make_world(file: Judged) -> Iterator[Broken]:
    """Replicas x shards x cp x tp x pp are the processes."""
    names = (key.SHARD, *(key.DEGREES[name] for name in _OTHERS))
    is_known = file.config.is_known or all(file.settings[name].line for name in names)
    shards, others, wanted = file.shards, file.others, file.world.num_gpus
    if is_known and others > 0 and file[key.SHARD] != 0 and shards * others != wanted:
        given = f"{shards} shards x {others} of the other degrees = {shards * others}"
        yield file.broken(key.SHARD, f"{given}; needs {wanted} processes")


def experts_fit_shards(file: Judged) -> Iterator[Broken]:
    """Expert parallelism divides shards x cp x tp, whose ranks it takes."""
    ep, inner = file.degree("ep"), file.shards * file.degree("cp") * file.degree("tp")
    if ep > 1 and inner % ep:
        message = f"{ep} given; needs a divisor of shards x cp x tp = {inner}"
        yield file.broken(key.DEGREES["ep"], message)


def experts_are_whole(file: Judged) -> Iterator[Broken]:
    """Expert parallelism divides the experts."""
    ep, experts = file.degree("ep"), file.model("num_experts")
    if ep > 1 and experts and experts % ep:
        yield file.broken(key.DEGREES["ep"], f"{ep} given; needs a divisor of {experts} experts")


def experts_exist(file: Judged) -> Iterator[Broken]:
    """Expert parallelism needs a mixture: torchtitan ignores it for other models."""
    ep = file.degree("ep")
    if ep > 1 and not file.model("num_experts") and file.model("num_layers"):
        yield file.broken(key.DEGREES["ep"], f"{ep} given; the model has no experts")


def tp_divides_heads(file: Judged) -> Iterator[Broken]:
    """Tensor parallelism divides query heads and heads of keys and values."""
    tp = file.degree("tp")
    for name, what in (("num_heads", "heads"), ("num_kv_heads", "key and value heads")):
        heads = file.model(name)
        if tp > 1 and heads % tp:
            message = f"{tp} given; needs a divisor of {heads} {what}"
            yield file.broken(key.DEGREES["tp"], message)


def sequence_is_divided(file: Judged) -> Iterator[Broken]:
    """The sequence is cut into tp pieces under sequence parallelism, 2 x cp under cp."""
    cp, tp, length = file.degree("cp"), file.degree("tp"), file[key.SEQ_LEN]
    pieces = (tp if file[key.SEQUENCE_PARALLEL] else 1) * (2 * cp if cp > 1 else 1)
    if pieces > 1 and length % pieces:
        yield file.broken(key.SEQ_LEN, f"{length} given; needs a multiple of {pieces}")


def sequence_fits_rotary(file: Judged) -> Iterator[Broken]:
    """The sequence is no longer than the config's rotary embedding."""
    most, length = file.config.max_seq_len, file[key.SEQ_LEN]
    if most and length > most:
        yield file.broken(key.SEQ_LEN, f"{length} given; the config allows {most}")


def batch_is_divided(file: Judged) -> Iterator[Broken]:
    """The global batch is a multiple of the local one times data parallelism."""
    total, local = file[key.GLOBAL_BATCH], file[key.LOCAL_BATCH]
    step = local * file.degree("dp_replicate") * file.shards
    if total >= 0 and step > 0 and (total == 0 or total % step):
        message = f"{total} given; needs a multiple of {local} x data parallelism = {step}"
        yield file.broken(key.GLOBAL_BATCH, message)


def graphs_without_pipeline(file: Judged) -> Iterator[Broken]:
    """CUDA graphs are switched off under pipelining."""
    pp = file.degree("pp")
    if pp > 1 and not file[key.CUDA_GRAPHS]:
        yield file.broken(key.CUDA_GRAPHS, f"not set with {pp} pipeline stages; needs to be")


def graphs_without_experts(file: Judged) -> Iterator[Broken]:
    """CUDA graphs are switched off where expert parallelism waits for the host."""
    ep, dispatcher = file.degree("ep"), file.config.dispatcher
    if ep > 1 and dispatcher in SYNCHRONOUS and not file[key.CUDA_GRAPHS]:
        message = f"not set with expert parallelism {ep} over {dispatcher}; needs to be"
        yield file.broken(key.CUDA_GRAPHS, message)


def async_tp_is_compiled(file: Judged) -> Iterator[Broken]:
    """Asynchronous tensor parallelism needs compiled blocks."""
    if file[key.ASYNC_TP] and not file.compiles_blocks:
        message = "set; needs --compile.enable and model among its components"
        yield file.broken(key.ASYNC_TP, message)


def budget_is_compiled(file: Judged) -> Iterator[Broken]:
    """A memory budget for activations needs compiled blocks."""
    if file[POLICY] == "memory_budget" and not file.compiles_blocks:
        message = "memory-budget given; needs --compile.enable and model among its components"
        yield file.broken(POLICY, message)


def type_checks_without_pipeline(file: Judged) -> Iterator[Broken]:
    """Type checks of sharding cannot run under pipelining."""
    pp, backend = file.degree("pp"), file[key.SPMD_BACKEND]
    if pp > 1 and backend == "spmd_types" and file[TYPE_CHECKS]:
        yield file.broken(TYPE_CHECKS, f"set with {pp} pipeline stages; needs one stage")


def batches_may_vary(file: Judged) -> Iterator[Broken]:
    """Batch-invariant mode is not for pre-training."""
    if file[BATCH_INVARIANT]:
        yield file.broken(BATCH_INVARIANT, "set; training needs it to be off")


def context_needs_flex(file: Judged) -> Iterator[Broken]:
    """Context parallelism does not run with attention over variable lengths."""
    cp, attention = file.degree("cp"), file.config.attention
    if cp > 1 and attention == "VarlenAttention":
        message = f"{cp} given; the config's attention ({attention}) allows 1"
        yield file.broken(key.DEGREES["cp"], message)


def balancer_is_known(file: Judged) -> Iterator[Broken]:
    """The load balancer of context parallelism is one of torch's."""
    value = file[BALANCER]
    if file.degree("cp") > 1 and value and value not in BALANCERS:
        yield file.broken(BALANCER, f"{value!r} given; allowed are {', '.join(BALANCERS)}, None")


def balancer_is_named(file: Judged) -> Iterator[Broken]:
    """No load balancer is spelled None, not as an empty word."""
    if file[BALANCER] == "":
        yield file.broken(BALANCER, f"empty; allowed are {', '.join(BALANCERS)}, None")


_DIMS = "torchtitan/distributed/parallel_dims.py"
_TRAINER = "torchtitan/trainer.py"
_DECODER = "torchtitan/models/common/decoder.py"
RULES: tuple[FormatRule, ...] = (
    rule(config_is_named, "torchtitan/config/manager.py"),
    rule(degrees_are_positive, _DIMS),
    rule(degrees_make_world, _DIMS),
    rule(experts_fit_shards, _DIMS),
    rule(
        experts_are_whole,
        "not checked: torchtitan/models/common/moe_sharding.py splits experts over the ranks",
        enforced=False,
    ),
    rule(
        experts_exist,
        "not checked: torchtitan/config/configs.py says no effect for other models",
        enforced=False,
        severity="warning",
    ),
    rule(tp_divides_heads, _DECODER),
    rule(sequence_is_divided, _TRAINER),
    rule(sequence_fits_rotary, _DECODER),
    rule(batch_is_divided, _TRAINER),
    rule(graphs_without_pipeline, _TRAINER),
    rule(graphs_without_experts, _TRAINER),
    rule(async_tp_is_compiled, "torchtitan/config/configs.py"),
    rule(budget_is_compiled, _TRAINER),
    rule(type_checks_without_pipeline, _TRAINER),
    rule(batches_may_vary, _TRAINER),
    rule(context_needs_flex, "torchtitan/models/*/model.py"),
    rule(
        balancer_is_known,
        "not checked at the start: torchtitan/distributed/context_parallel/api.py, first step",
        enforced=False,
    ),
    rule(balancer_is_named, "torchtitan/config/configs.py"),
)
