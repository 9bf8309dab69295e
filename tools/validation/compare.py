"""Estimates every record and sets prediction beside measurement, like with like."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from planner.cost.estimate import Estimate, accuracy_regime, estimate
from planner.cost.kernels import peak_flops_per_s
from planner.cost.ledger import StageLedger, stage_ledgers
from planner.cost.stage_model import price
from planner.errors import InputError
from planner.spec.items import RunClass
from planner.units import GIB
from tools.validation.mapping import to_run
from tools.validation.records import MEMORY_UNITS, Memory, Record
from tools.validation.setup import CannotEstimateError

MEMORY_KINDS = ("allocated", "reserved", "nvidia_smi")


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What is predicted or was measured of one run; None where unknown."""

    iter_time_s: float | None = None
    iter_time_s_lower: float | None = None
    iter_time_s_upper: float | None = None
    """Ends of the stated range, of predictions only."""
    allocated_gib: float | None = None
    reserved_gib: float | None = None
    nvidia_smi_gib: float | None = None
    fits: bool | None = None

    def memory_gib(self, kind: str) -> float | None:
        """Memory of one kind of MEMORY_KINDS."""
        value: float | None = getattr(self, f"{kind}_gib")
        return value


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One record, its prediction, or the reason why there is none."""

    record: Record
    measured: Figures
    predicted: Figures | None = None
    notes: tuple[str, ...] = ()
    skipped: str | None = None
    run_class: RunClass | None = None
    """Published runs that the prediction's range is taken from."""
    machine_ends_s: tuple[float, float] | None = None
    """Predicted on the fastest and the slowest machine of the kind."""

    @property
    def time_error(self) -> float | None:
        """Predicted over measured iteration time, minus one."""
        predicted = self.predicted.iter_time_s if self.predicted else None
        return _relative(predicted, self.measured.iter_time_s)

    @property
    def is_in_range(self) -> bool | None:
        """Whether the measured time lies in the range that the prediction states."""
        predicted, measured_s = self.predicted, self.measured.iter_time_s
        lower_s = predicted.iter_time_s_lower if predicted else None
        upper_s = predicted.iter_time_s_upper if predicted else None
        if measured_s is None or lower_s is None or upper_s is None:
            return None
        return lower_s <= measured_s <= upper_s

    @property
    def unexplained_ratio(self) -> float | None:
        """Measured time over the nearest that a machine of the kind is predicted to take."""
        measured_s = self.measured.iter_time_s
        if measured_s is None or self.machine_ends_s is None:
            return None
        fastest_s, slowest_s = self.machine_ends_s
        return measured_s / min(max(measured_s, fastest_s), slowest_s)

    def memory_error(self, kind: str) -> float | None:
        """Predicted over measured memory of one kind, minus one."""
        predicted = self.predicted.memory_gib(kind) if self.predicted else None
        return _relative(predicted, self.measured.memory_gib(kind))

    @property
    def first_memory_error(self) -> float | None:
        """Memory error of the most exact kind published."""
        errors = (self.memory_error(kind) for kind in MEMORY_KINDS)
        return next((error for error in errors if error is not None), None)

    @property
    def in_headline(self) -> bool:
        """Whether the time counts in the headline: complete, quality A or B, direct."""
        return self.predicted is not None and self.record.is_scored and self.record.has_direct_time


def _relative(predicted: float | None, measured: float | None) -> float | None:
    if predicted is None or measured is None:
        return None
    return predicted / measured - 1.0


def _gib(memory: Memory, value: float | None) -> float | None:
    return None if value is None else value * MEMORY_UNITS[memory.unit]


def measured_figures(record: Record) -> Figures:
    """Return the published figures in the planner's units.

    Memory is in its stated unit; without one in GiB, as nvidia-smi prints it. Memory of a kind
    that is not known (``reported_gb``) is not compared.
    """
    memory = record.memory
    reserved = _gib(memory, memory.reserved_gib) if memory else None
    allocated = _gib(memory, memory.allocated_gib) if memory else None
    smi = _gib(memory, memory.nvidia_smi_gb) if memory else None
    ran = any(value is not None for value in (record.iter_time_s, allocated, reserved, smi))
    return Figures(
        iter_time_s=record.iter_time_s,
        allocated_gib=allocated,
        reserved_gib=reserved,
        nvidia_smi_gib=smi,
        fits=False if record.out_of_memory else (True if ran else None),
    )


def read_stages(record: Record, pp: int) -> tuple[int, ...]:
    """Stages on whose devices nvidia-smi was read."""
    stated = record.memory.nvidia_smi_stages if record.memory else None
    return {"first": (0,), "first and last": (0, pp - 1), None: tuple(range(pp))}[stated]


def predicted_figures(
    result: Estimate, at_peak: Estimate, ledgers: Sequence[StageLedger], record: Record
) -> Figures:
    """Return the estimate's figures as tools report them, memory at the longest batch.

    Allocated: the largest over stages. Reserved: the peak without what the caching allocator
    does not hold (CUDA context and communicator buffers). nvidia-smi: the whole peak,
    of the stages it was read on.
    """
    memory = at_peak.memory
    stages = read_stages(record, len(memory.stage_peak_bytes))
    return Figures(
        iter_time_s=result.iter_time_s,
        iter_time_s_lower=result.iter_time_s_lower,
        iter_time_s_upper=result.iter_time_s_upper,
        allocated_gib=max(ledger.allocated_bytes for ledger in ledgers) / GIB,
        reserved_gib=max(ledger.reserved_bytes for ledger in ledgers) / GIB,
        nvidia_smi_gib=max(memory.stage_peak_bytes[i] for i in stages) / GIB,
        fits=memory.fits,
    )


def compare(record: Record) -> Comparison:
    """Estimate one record as it was configured; a reason instead where that is impossible."""
    measured = measured_figures(record)
    try:
        run = to_run(record)
        longest = run if record.at_peak is record else to_run(record.at_peak)
    except (CannotEstimateError, InputError) as reason:
        return Comparison(record=record, measured=measured, skipped=str(reason))
    result = estimate(run.context, run.strategy)
    peak = peak_flops_per_s(run.context.cluster.accelerator, record.precision)
    least_s = result.model_flops / run.strategy.num_gpus / peak
    if record.iter_time_s and record.iter_time_s < least_s:
        text = f"given {record.iter_time_s:g}, allowed from {least_s:.4g} at the peak of all GPUs"
        return Comparison(record=record, measured=measured, skipped=f"iter_time_s: {text}")
    at_peak = result if longest is run else estimate(longest.context, longest.strategy)
    ledgers = stage_ledgers(price(longest.context, longest.strategy))
    predicted = predicted_figures(result, at_peak, ledgers, record)
    return Comparison(
        record=record,
        measured=measured,
        predicted=predicted,
        notes=run.notes,
        run_class=accuracy_regime(run.context, run.strategy),
        machine_ends_s=result.machine_ends_s,
    )


def compare_all(records: Iterable[Record]) -> list[Comparison]:
    """Estimate every record, in order."""
    return [compare(record) for record in records]
