"""The full, itemised estimate of one strategy: time and memory, every number with an address."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from planner.cost.context import Context
from planner.cost.flops import mfu, model_flops_per_iteration
from planner.cost.layer_time import TimeItems
from planner.cost.ledger import StageLedger, stage_ledger
from planner.cost.stage_model import PricedStrategy, iteration_time_s, price_all
from planner.cost.time_items import pipeline_items, stage_items, time_items
from planner.spec.items import TUNED, USUAL, Item, RunClass, declared_items
from planner.spec.strategy import Strategy

Verdict = Literal["fits", "tight", "does not fit"]


@dataclass(frozen=True, kw_only=True)
class MemoryEstimate:
    """Peak memory of the fullest stage and of every stage; items come when they are asked for."""

    peak_bytes: float
    hbm_bytes: float  # Memory of the device
    usable_bytes: float  # Part of it that the search may fill
    uncertainty_bytes: float
    """Error of the model on published runs of this framework, or the margin given."""
    stage: int  # the fullest stage
    stage_peak_bytes: tuple[float, ...]
    host_bytes: float  # Offloaded bytes per rank
    host_limit_bytes: float  # Bytes a rank may offload; infinite where it offloads nothing
    _subject: PricedStrategy = field(repr=False, compare=False)

    @cached_property
    def ledger(self) -> StageLedger:
        """Ledger of the fullest stage; its items sum to peak_bytes."""
        return stage_ledger(self._subject, self.stage)

    def verdict_at(self, peak_bytes: float) -> Verdict:
        """Return the verdict on a peak: ``tight`` inside the uncertainty, or less cached blocks."""
        beyond_bytes = max(peak_bytes - self.hbm_bytes, 0.0)
        # The ledger takes time to make, and is asked only beyond the device.
        if self.host_missing_bytes or (beyond_bytes and beyond_bytes > self.ledger.released_bytes):
            return "does not fit"
        return "tight" if peak_bytes > self.hbm_bytes - self.uncertainty_bytes else "fits"

    @property
    def fits(self) -> bool:
        """Within the device, once cached blocks are given back, and the host's limit."""
        return self.verdict != "does not fit"

    @property
    def headroom_bytes(self) -> float:
        """Usable HBM less the peak."""
        return self.usable_bytes - self.peak_bytes

    @property
    def free_bytes(self) -> float:
        """HBM less the peak, the margin included."""
        return self.hbm_bytes - self.peak_bytes

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
        """Verdict on the fullest stage."""
        return self.verdict_at(self.peak_bytes)

    @property
    def allocated_bytes(self) -> float:
        """Bytes of the tensors of the fullest stage, without overheads and fragmentation."""
        return self.ledger.allocated_bytes

    @property
    def moment(self) -> str:
        """Moment of the peak memory."""
        return self.ledger.moment

    @property
    def items(self) -> dict[str, float]:
        """Bytes by dotted name; their sum is peak_bytes."""
        items: dict[str, float] = {}
        for item in self.ledger.items:
            items[item.name] = items.get(item.name, 0.0) + item.num_bytes
        return items


def memory_estimate(subject: PricedStrategy) -> MemoryEstimate:
    """Peak over stages; the ledger of the fullest one follows when it is asked for."""
    model = subject.model
    peaks = model.peak_bytes(*subject.split)[0]
    stage = int(peaks.argmax())
    host_bytes = float(model.host_bytes(*subject.split).max())
    hbm_bytes = subject.context.cluster.accelerator.hbm_bytes
    return MemoryEstimate(
        peak_bytes=float(peaks[stage]),
        hbm_bytes=hbm_bytes,
        usable_bytes=model.usable_bytes,
        uncertainty_bytes=subject.context.traits.memory_uncertainty_fraction * hbm_bytes,
        stage=stage,
        stage_peak_bytes=tuple(peaks.tolist()),
        host_bytes=host_bytes,
        host_limit_bytes=float(model.host_limit_bytes[0]) if host_bytes else math.inf,
        _subject=subject,
    )


def accuracy_regime(context: Context, strategy: Strategy) -> RunClass:
    """Published runs that a plan is like: of KINDS the first that holds, and who tuned them.

    What makers of a stack publish of it is its best; users' own runs are slower, by what nobody
    tuned for them: kernels, networks, hosts, data.
    """
    kind = context.model.kind
    if context.traits.training.is_frozen:
        kind = "frozen"
    elif strategy.offload != "none":
        kind = "offload"
    return kind, TUNED if context.is_tuned else USUAL


def fast_slow_machine_s(
    context: Context, strategies: Sequence[Strategy]
) -> dict[int, tuple[float, float]]:
    """Iterations on the fastest and the slowest machine that published figures allow, by position.

    Machines differ in what their GEMMs sustain (where the accelerator states a range) and
    in what an optimizer's step on the host reaches. Strategies that neither concerns are left out.
    """
    gemm = context.cluster.accelerator.gemm
    slow_host, fast_host = context.traits.offload.host_optimizer_factors
    places = [
        place
        for place, strategy in enumerate(strategies)
        if gemm.has_range or "optimizer" in strategy.offload
    ]
    concerned = [strategies[place] for place in places]

    def times_s(gemm_fraction: float, host_factor: float) -> list[float]:
        machine = with_products(context, sustained_fraction=gemm_fraction)
        machine = with_host_rate(machine, host_factor)
        return [iteration_time_s(subject) for subject in price_all(machine, concerned)]

    fast_s, slow_s = times_s(gemm.fastest, fast_host), times_s(gemm.slowest, slow_host)
    return dict(zip(places, zip(fast_s, slow_s, strict=True), strict=True))


def with_products(context: Context, **fractions: Any) -> Context:  # noqa: ANN401
    """The context whose GEMMs sustain these fractions of peak, by their fields."""
    accelerator = context.cluster.accelerator
    gemm = replace(accelerator.gemm, **fractions)
    return context.with_node(accelerator=replace(accelerator, gemm=gemm))


def with_host_rate(context: Context, factor: float) -> Context:
    """The context whose hosts update so many times the parameters per second."""
    traits, num_bytes = context.traits, context.traits.offload.host_step_bytes
    offload = replace(traits.offload, host_step_bytes=num_bytes / factor)
    return replace(context, traits=replace(traits, offload=offload))


# What an estimate can have, each declared where it is computed.
ITEMS = declared_items()
# Items below this share of an iteration are rounding, not time.
NEGLIGIBLE_FRACTION = 1e-11


def item_of(name: str) -> Item | None:
    """The item with the longest prefix of ``name``."""
    matching = [item for item in ITEMS if name.startswith(item.address)]
    return max(matching, key=lambda item: len(item.address), default=None)


def item_title(name: str) -> str:
    """A time item in a sentence."""
    item = item_of(f"time.{name}")
    return item.title if item and item.title else name


@dataclass(frozen=True, kw_only=True)
class TimeItem:
    """One item of iteration time."""

    busy_s: float
    exposed_s: float


@dataclass(frozen=True, kw_only=True)
class _Overlap:
    """Several strategies with all or no overlap, priced together once one of them is asked for."""

    context: Context
    strategies: Sequence[Strategy]

    @cached_property
    def bounds_s(self) -> tuple[list[float], list[float]]:
        """Seconds per iteration where everything that can overlap does, and where nothing does."""
        traits, found = self.context.traits, []
        for overlaps in (True, False):
            overlap = replace(
                traits.overlap,
                tensor_parallel_overlap="bulk" if overlaps else "none",
                overlaps_gradient_reduction=overlaps,
                overlaps_parameter_gather=overlaps,
                pipeline_p2p_overlap="all" if overlaps else "none",
                communication_multiprocessors=0.0 if overlaps else math.inf,
            )
            context = replace(self.context, traits=replace(traits, overlap=overlap))
            found.append([iteration_time_s(one) for one in price_all(context, self.strategies)])
        return found[0], found[1]


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Everything the model says about one strategy; items are computed when they are asked for."""

    iter_time_s: float
    machine_ends_s: tuple[float, float]  # Iteration times on the fastest and the slowest machine
    iter_time_s_lower: float  # 80 % of published runs of this regime lay between lower and upper
    iter_time_s_upper: float
    regime: str  # the published runs that lower and upper are taken from
    tokens_per_s: float
    tokens_per_s_per_gpu: float
    model_flops: float  # Per iteration, of the keys that a query may see (FLOPS_CONVENTION)
    mfu: float
    mfu_full_square: float  # the same with the attention square counted whole
    memory: MemoryEstimate
    _subject: PricedStrategy = field(repr=False, compare=False)
    _overlap: _Overlap = field(repr=False, compare=False)
    _position: int = field(repr=False, compare=False)  # Index in the overlap's strategies

    @property
    def mfu_lower(self) -> float:
        """MFU at iter_time_s_upper: 80 % of published runs of this regime lay between the two."""
        return self.mfu * self.iter_time_s / self.iter_time_s_upper

    @property
    def mfu_upper(self) -> float:
        """MFU at iter_time_s_lower."""
        return self.mfu * self.iter_time_s / self.iter_time_s_lower

    @property
    def model_flops_per_s_per_gpu(self) -> float:
        """Model FLOPs over time and GPUs: the TFLOP/s that reports of runs state."""
        return self.model_flops / self.iter_time_s / self._subject.strategy.num_gpus

    @property
    def iter_time_s_overlapped(self) -> float:
        """Everything that can overlap does, at no cost to computation."""
        return self._overlap.bounds_s[0][self._position]

    @property
    def iter_time_s_serial(self) -> float:
        """Nothing overlaps."""
        return self._overlap.bounds_s[1][self._position]

    @cached_property
    def _items(self) -> tuple[TimeItems, int]:
        return time_items(self._subject)

    @cached_property
    def time(self) -> dict[str, TimeItem]:
        """Time by dotted name, on the slowest stage; exposed seconds sum to iter_time_s."""
        return self._named(self._items[0])

    @cached_property
    def pipeline_time(self) -> dict[str, TimeItem]:
        """Time by dotted name, the mean over all stages; exposed seconds sum to iter_time_s."""
        return self._named(pipeline_items(self._subject))

    def stage_time(self, stage: int) -> dict[str, TimeItem]:
        """Return the time of one stage per iteration by dotted name, without waits for others."""
        return self._named(stage_items(self._subject, stage))

    def _named(self, items: TimeItems) -> dict[str, TimeItem]:
        negligible_s = NEGLIGIBLE_FRACTION * self.iter_time_s
        return {
            name: TimeItem(busy_s=float(item.busy_s[0]), exposed_s=float(item.exposed_s[0]))
            for name, item in items.items()
            if max(float(item.busy_s[0]), abs(float(item.exposed_s[0]))) > negligible_s
        }

    @property
    def slowest_stage(self) -> int:
        """The stage that takes longest."""
        return self._items[1]


def estimate(context: Context, strategy: Strategy) -> Estimate:
    """Time and memory of one strategy, itemised; the same formulas the search uses."""
    return estimates(context, [strategy])[0]


def estimates(context: Context, strategies: Sequence[Strategy]) -> list[Estimate]:
    """Estimate many strategies, what they share computed once."""
    overlap = _Overlap(context=context, strategies=strategies)
    ends_s = fast_slow_machine_s(context, strategies)
    flops = model_flops_per_iteration(context.model, context.job, context.traits)
    accelerator = context.cluster.accelerator
    found = []
    for position, subject in enumerate(price_all(context, strategies)):
        iter_time, num_gpus = iteration_time_s(subject), subject.strategy.num_gpus
        tokens_per_s = context.job.tokens_per_iteration / iter_time
        regime = accuracy_regime(context, subject.strategy)
        off = context.traits.time_range(regime, accelerator.name)
        fast_s, slow_s = ends_s.get(position, (iter_time, iter_time))
        found.append(
            Estimate(
                iter_time_s=iter_time,
                machine_ends_s=(fast_s, slow_s),
                iter_time_s_lower=fast_s * off.low,
                iter_time_s_upper=slow_s * off.high,
                regime=off.regime + ("; machines differ" if fast_s < slow_s else ""),
                tokens_per_s=tokens_per_s,
                tokens_per_s_per_gpu=tokens_per_s / num_gpus,
                model_flops=flops.total,
                mfu=mfu(flops.total, iter_time, num_gpus, accelerator),
                mfu_full_square=mfu(flops.full_square, iter_time, num_gpus, accelerator),
                memory=memory_estimate(subject),
                _subject=subject,
                _overlap=overlap,
                _position=position,
            )
        )
    return found
