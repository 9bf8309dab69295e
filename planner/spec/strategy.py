"""Strategy: one parallel layout, as a scalar record and as columns with the same field names."""

from dataclasses import dataclass, fields

import numpy as np

from planner.units import Array, Rows

OFFLOAD_CODES = (
    "none",
    "optimizer:host",
    "optimizer+parameters:host",
    "optimizer:nvme",
    "optimizer+parameters:nvme",
)
POLICIES = ("selective", "full", "offloaded")
"""What may happen to a layer's saved activations: the cheap, large ones recomputed, all of them
recomputed, or all sent to the host until its backward."""
PLACEMENTS = (("tp", "cp", "ep", "dp", "pp"), ("tp", "cp", "ep", "pp", "dp"))
"""Orders in which the axes are placed on the cluster, innermost first."""
PLACEMENT_NAMES = tuple("-".join(order) for order in PLACEMENTS)

SCHEDULES = ("1f1b", "gpipe", "zb-h1", "zb-h2", "zb-interleaved", "zb-v", "dualpipe-v")
"""Pipeline schedules; 1f1b with several chunks per stage is interleaved 1F1B."""
V_SHAPED = ("zb-v", "dualpipe-v")
"""Stage i holds chunks i and 2p - 1 - i: the first one the embedding and the head."""
_IS_V_SHAPED = np.array([name in V_SHAPED for name in SCHEDULES])


@dataclass(frozen=True, kw_only=True)
class StrategyColumns:
    """Columns of strategies: every field is an integer array of one common length.

    Layers per stage and recomputation per layer are decided later, by the stage problem.
    """

    dp: Array
    dp_replicate: Array
    """Of dp, how many ranks hold whole replicas; states are sharded over dp / dp_replicate."""
    tp: Array
    pp: Array
    vpp: Array
    cp: Array
    ep: Array
    etp: Array
    """Ranks that split every routed expert; tp where experts are split as other layers are, and
    in dense models. Expert mesh: etp x ep x edp ranks of tp x cp x dp."""
    zero_stage: Array
    micro_batch: Array
    num_micro_batches: Array
    sequence_parallel: Array
    offload: Array
    """Index into OFFLOAD_CODES."""
    offload_percent: Array
    """Of the optimizer's states, where they are offloaded, how many."""
    placement: Array
    """Index into PLACEMENTS."""
    schedule: Array
    """Index into SCHEDULES."""

    @property
    def num_gpus(self) -> Array:
        """GPUs of each layout: dp · tp · pp · cp (the expert mesh takes the same ranks)."""
        gpus: Array = self.dp * self.tp * self.pp * self.cp
        return gpus

    @property
    def expert_dp(self) -> Array:
        """Ranks that hold the same part of the same experts: tp · cp · dp / (etp · ep)."""
        replicas: Array = self.tp * self.cp * self.dp // (self.etp * self.ep)
        return replicas

    @property
    def head_stage(self) -> Array:
        """The stage with the head and the loss: the last one, the first of V-shaped schedules."""
        last: Array = self.pp - 1
        return np.where(_IS_V_SHAPED[self.schedule], 0, last) if self.schedule.any() else last

    def __len__(self) -> int:
        return len(self.dp)

    def take(self, index: Rows) -> "StrategyColumns":
        """Return the rows at ``index`` (integer positions or a mask)."""
        return StrategyColumns(**{f.name: getattr(self, f.name)[index] for f in fields(self)})

    @staticmethod
    def concatenate(parts: list["StrategyColumns"]) -> "StrategyColumns":
        """Stack columns of several spaces."""
        names = [f.name for f in fields(StrategyColumns)]
        return StrategyColumns(
            **{name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
        )


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """One complete layout: degrees, batch, ZeRO, and per stage the layers and their policies."""

    dp: int
    tp: int
    pp: int
    vpp: int
    cp: int
    ep: int
    etp: int
    """Ranks that split every routed expert; tp where experts are split as other layers are, and
    in dense models. Expert mesh: etp x ep x edp ranks of tp x cp x dp."""
    zero_stage: int
    micro_batch: int
    num_micro_batches: int
    sequence_parallel: bool
    offload: str
    layers_per_stage: tuple[int, ...]
    selective_layers_per_stage: tuple[int, ...]
    """Layers of each stage that recompute only their cheap, large activations."""
    recompute_layers_per_stage: tuple[int, ...]
    """Layers of each stage that are recomputed in full."""
    dp_replicate: int = 1
    """Replicas of the sharding group (hybrid sharding); states shard over dp / dp_replicate."""
    placement: str = PLACEMENT_NAMES[0]
    """Axes from the innermost network level outwards."""
    schedule: str = "1f1b"
    """Of the pipeline, one of SCHEDULES."""
    offload_percent: int = 100
    """Of the optimizer's states, where they are offloaded, how many."""
    offloaded_layers_per_stage: tuple[int, ...] = ()
    """Layers of each stage whose saved activations go to the host; empty: none."""
    recompute_modules: tuple[str, ...] | None = None
    """What selective layers recompute; None: what the framework's profile selects."""

    @property
    def policy_counts(self) -> tuple[tuple[int, ...], ...]:
        """Layers of each stage under each of POLICIES."""
        none = (0,) * len(self.layers_per_stage)
        return (
            self.selective_layers_per_stage,
            self.recompute_layers_per_stage,
            self.offloaded_layers_per_stage or none,
        )

    @property
    def mixes_policies(self) -> bool:
        """Some layers are under a policy that others are not under."""
        num_layers = sum(self.layers_per_stage)
        return any(0 < sum(counts) < num_layers for counts in self.policy_counts)

    @property
    def head_stage(self) -> int:
        """The stage with the head and the loss."""
        return 0 if self.schedule in V_SHAPED else self.pp - 1

    @property
    def num_gpus(self) -> int:
        """GPUs of the layout."""
        return self.dp * self.tp * self.pp * self.cp

    @property
    def recompute(self) -> str:
        """``none``, ``selective``, ``full``, or the share of layers under a mixed policy."""
        num_layers = sum(self.layers_per_stage)
        num_full = sum(self.recompute_layers_per_stage)
        num_selective = sum(self.selective_layers_per_stage)
        if num_full + num_selective == 0:
            return "none"
        if num_full == num_layers:
            return "full"
        if num_selective == num_layers:
            return "selective"
        parts = [
            f"{name} {count}/{num_layers}"
            for name, count in (("full", num_full), ("selective", num_selective))
            if count
        ]
        return " + ".join(parts)

    @property
    def selects(self) -> str:
        """Modules that selective layers recompute, where they are named."""
        return ", ".join(self.recompute_modules or ())

    def columns(self) -> StrategyColumns:
        """Return this layout as columns of length one."""

        def one(value: int) -> Array:
            return np.array([value])

        return StrategyColumns(
            dp=one(self.dp),
            dp_replicate=one(self.dp_replicate),
            tp=one(self.tp),
            pp=one(self.pp),
            vpp=one(self.vpp),
            cp=one(self.cp),
            ep=one(self.ep),
            etp=one(self.etp),
            zero_stage=one(self.zero_stage),
            micro_batch=one(self.micro_batch),
            num_micro_batches=one(self.num_micro_batches),
            sequence_parallel=one(int(self.sequence_parallel)),
            offload=one(OFFLOAD_CODES.index(self.offload)),
            offload_percent=one(self.offload_percent),
            placement=one(PLACEMENT_NAMES.index(self.placement)),
            schedule=one(SCHEDULES.index(self.schedule)),
        )
