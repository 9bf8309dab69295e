"""Peak memory of the fullest stage by item."""

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from planner.cost.ledger import StageLedger, stage_ledger
from planner.cost.priced import Subject
from planner.cost.stage import fits, stage_host_bytes, stage_peak_bytes

Verdict = Literal["fits", "tight", "does not fit"]


@dataclass(frozen=True, kw_only=True)
class MemoryEstimate:
    """Peak memory of the fullest stage and of every stage; items come when they are asked for."""

    peak_bytes: float
    hbm_bytes: float
    """What the device has."""
    usable_bytes: float
    """Of it, what the search may fill."""
    uncertainty_bytes: float
    """How far the model was off on published runs of this framework, or the margin given."""
    peak_stage: int
    """The fullest stage."""
    stage_peak_bytes: tuple[float, ...]
    host_bytes: float
    """Offloaded bytes per rank."""
    host_limit_bytes: float
    """What a rank may offload; infinite where it offloads nothing."""
    fits: bool
    """Within usable_bytes and the host's limit."""
    _subject: Subject = field(repr=False, compare=False)

    @cached_property
    def ledger(self) -> StageLedger:
        """Of the fullest stage; its items sum to peak_bytes."""
        return stage_ledger(self._subject, self.peak_stage)

    def verdict_at(self, peak_bytes: float) -> Verdict:
        """How a peak stands to the device: ``tight`` inside the uncertainty."""
        if peak_bytes > self.hbm_bytes or self.host_bytes > self.host_limit_bytes:
            return "does not fit"
        return "tight" if peak_bytes > self.hbm_bytes - self.uncertainty_bytes else "fits"

    @property
    def host_missing_bytes(self) -> float:
        """Per rank, what the host lacks for what is offloaded; 0 where it has room."""
        return max(self.host_bytes - self.host_limit_bytes, 0.0)

    @property
    def ranks_per_node(self) -> int:
        """Ranks that share a node's host memory or disks."""
        node = self._subject.context.cluster.node
        return min(node.num_accelerators, self._subject.strategy.num_gpus)

    @property
    def verdict(self) -> Verdict:
        """Of the fullest stage."""
        return self.verdict_at(self.peak_bytes)

    @property
    def allocated_bytes(self) -> float:
        """Of the fullest stage: what its tensors take, without overheads and fragmentation."""
        return self.ledger.allocated_bytes

    @property
    def moment(self) -> str:
        """When it is fullest."""
        return self.ledger.moment

    @property
    def items(self) -> dict[str, float]:
        """Bytes by dotted name."""
        items: dict[str, float] = {}
        for item in self.ledger.items:
            items[item.name] = items.get(item.name, 0.0) + item.num_bytes
        return items


def memory_estimate(subject: Subject) -> MemoryEstimate:
    """Peak over stages; the ledger of the fullest one follows when it is asked for."""
    model = subject.model
    peaks = stage_peak_bytes(model, *subject.split)[0]
    stage = int(peaks.argmax())
    host_bytes = float(stage_host_bytes(model, *subject.split).max())
    hbm_bytes = subject.context.cluster.accelerator.hbm_bytes
    return MemoryEstimate(
        peak_bytes=float(peaks[stage]),
        hbm_bytes=hbm_bytes,
        usable_bytes=model.usable_bytes,
        uncertainty_bytes=subject.context.traits.memory_uncertainty_fraction * hbm_bytes,
        peak_stage=stage,
        stage_peak_bytes=tuple(peaks.tolist()),
        host_bytes=host_bytes,
        host_limit_bytes=float(model.host_limit_bytes[0]) if host_bytes else math.inf,
        fits=bool(fits(model, *subject.split)[0]),
        _subject=subject,
    )
