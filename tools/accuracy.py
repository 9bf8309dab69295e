"""Writes the tables of docs/accuracy.md, and what plans know of the model's errors.

``python -m tools.accuracy`` estimates the published runs; same input, same text.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

from planner.spec.items import REACHES, class_words, wider_regimes
from tools.evidence import evidence_text
from tools.pages import DATA, DOCS, ROOT, filled, table
from tools.ratios import drifts, layout_groups, ratio_errors, ratio_errors_text, ratio_pairs
from tools.scatter import SCATTERS, tau_of_exact_times
from tools.time_uncertainty import (
    coverage,
    profile_runs_text,
    regimes,
    runs_of,
    time_uncertainty_text,
)
from tools.uncertainty import uncertainty_text
from tools.validation.compare import MEMORY_KINDS, Comparison, compare_all
from tools.validation.fit import CrossValidation, cross_validate, load_constants, samples_of
from tools.validation.records import Record, read_records, read_runs
from tools.validation.screen import (
    CONSTANT_TITLES,
    SPLIT_TITLES,
    constant_rows,
    error_rows,
    sentence,
)
from tools.validation.setup import to_cluster
from tools.validation.summary import (
    MEMORY_TITLES,
    Errors,
    Summary,
    error_cells,
    percent,
    summarize,
    summary,
    time_errors,
    worst_rows,
)

NUM_WORST = 20
LEAST_INSIDE = 0.75  # share of a class's runs that its range holds, with and without their source
PAGE = DOCS / "accuracy.md"
FRAMEWORKS = ROOT / "planner" / "frameworks"


def _errors(title: str, rows: Iterable[tuple[str, Errors]]) -> str:
    titles = [title, "runs", "mean %", "median %", "p90 %", "bias %"]
    return table(titles, ([name, *error_cells(errors)] for name, errors in rows))


def _time(found: Summary) -> str:
    whole = [
        ("all", found.time),
        ("dense models", found.time_dense),
        ("mixture-of-experts models", found.time_moe),
        ("time derived from TFLOPs or MFU (not in the others)", found.time_from_flops),
    ]
    pairs = ((f"{f}, {gpu}", errors) for (f, gpu), errors in found.by_framework_and_gpu.items())
    return "\n\n".join(
        (
            _errors("runs", whole),
            _errors("framework, GPU", pairs),
            _errors("size", found.by_size.items()),
        )
    )


def who_measured(comparisons: Sequence[Comparison]) -> str:
    """Errors of time by class of runs, then of memory by who measured and kind of peak."""
    times: dict[str, list[Comparison]] = defaultdict(list)
    peaks: dict[str, list[float]] = defaultdict(list)
    for row in comparisons:
        if row.run_class and row.in_headline and row.time_error is not None:
            times[class_words(row.run_class)].append(row)
            times[class_words(("", row.run_class[1]))].append(row)
        if row.run_class and row.record.is_scored:
            for kind in MEMORY_KINDS:
                error = row.memory_error(kind)
                if error is not None:
                    words = f"{MEMORY_TITLES[kind]}{REACHES[row.run_class[1]]}"
                    peaks[words].append(error)
    rows = ((name, summarize(time_errors(found))) for name, found in sorted(times.items()))
    memory = ((name, summarize(found)) for name, found in sorted(peaks.items()))
    return f"{_errors('time', rows)}\n\n{_errors('peak', memory)}"


def _ranges(comparisons: Sequence[Comparison]) -> str:
    runs = runs_of(comparisons)
    known = regimes(runs)
    whole, *classes = coverage(runs)
    rows = []
    for each in classes:
        key = next(key for key in wider_regimes(each.key) if key in known)
        regime = known[key]
        rows.append(
            [
                class_words(each.key),
                str(len(each.runs)),
                str(len({run.source for run in each.runs})),
                percent(regime.low - 1.0, signed=True),
                percent(regime.high - 1.0, signed=True),
                class_words(key),
                percent(each.inside),
                percent(each.left_out),
                percent(each.left_out_by_source),
                percent(each.width),
            ]
        )
    titles = ["class", "runs", "sources", "from %", "to %", "range of", "inside %"]
    titles += ["left out, inside %", "left out, mean over sources %", "left out, median width %"]
    poor = [each for each in classes if min(each.inside, each.left_out) < LEAST_INSIDE]
    named = ", ".join(
        f"{class_words(each.key)} ({len({run.source for run in each.runs})} sources)"
        for each in poor
    )
    said = (
        f"All {len(whole.runs)} runs: {percent(whole.inside)} % inside the range of their class, "
        f"{percent(whole.left_out)} % inside the one taken without their source "
        f"({percent(whole.left_out_by_source)} % as the mean over sources). "
        f"Below {percent(LEAST_INSIDE)} % of either: {named or 'no class'}."
    )
    return f"{table(titles, rows)}\n\n{said}"


def _memory_by_framework(rows: Sequence[Comparison]) -> list[tuple[str, Errors]]:
    """Memory errors of scored rows by framework and kind of peak."""
    errors: dict[str, list[float]] = {}
    for kind in MEMORY_KINDS:
        for row in rows:
            error = row.memory_error(kind)
            if error is not None and row.record.is_scored:
                errors.setdefault(f"{row.record.framework}, {kind}", []).append(error)
    return [(name, summarize(values)) for name, values in errors.items()]


def _memory(comparisons: Sequence[Comparison], found: Summary) -> str:
    peaks = ((MEMORY_TITLES[kind], errors) for kind, errors in found.memory.items())
    said = (
        f"Runs reported out of memory: {found.out_of_memory_right} of {found.out_of_memory} "
        f"predicted not to fit. Runs that ran: {found.ran_predicted_to_fit} of {found.ran} "
        "predicted to fit."
    )
    by_framework = _errors("framework, peak", _memory_by_framework(comparisons))
    return "\n\n".join((_errors("peak", peaks), by_framework, said))


def _ranking(found: Summary) -> str:
    rows = [
        [
            group.source,
            group.model,
            str(group.gpus),
            str(group.layouts),
            f"{group.tau:.2f}",
            percent(group.regret),
        ]
        for group in found.ranking
    ]
    tau = "-" if found.mean_tau is None else f"{found.mean_tau:.2f}"
    regret = percent(found.mean_regret)
    said = f"Mean over {len(rows)} groups: τ {tau}, regret {regret} %."
    titles = ["source", "model", "GPUs", "layouts", "τ", "regret %"]
    return f"{table(titles, rows)}\n\n{said}"


def _scatter(found: Summary) -> str:
    times = [group.predicted_s for group in found.ranking]
    rows = ([percent(each), f"{tau_of_exact_times(times, each):.2f}"] for each in SCATTERS)
    return table(["measured times scatter by %", "τ of exact predictions"], rows)


def _pairs(comparisons: Sequence[Comparison]) -> str:
    rows = (
        [
            error.kind,
            str(error.num_pairs),
            str(error.num_groups),
            str(error.num_runs),
            percent(math.expm1(error.median)),
            percent(math.expm1(error.covered)),
            *(percent(math.expm1(one), signed=True) for one in (error.low, error.high, error.bias)),
        ]
        for error in ratio_errors(ratio_pairs(layout_groups(comparisons)))
    )
    counts = ["differ in", "pairs", "groups", "runs"]
    return table([*counts, "median %", "80 % below", "low %", "high %", "bias %"], rows)


def _drift(comparisons: Sequence[Comparison]) -> str:
    rows = (
        [
            drift.degree,
            str(drift.num_groups),
            str(drift.num_runs),
            percent(math.expm1(drift.per_doubling), signed=True),
            percent(math.expm1(drift.standard_error)),
            percent(math.expm1(drift.shrunk), signed=True),
        ]
        for drift in drifts(layout_groups(comparisons))
    )
    return table(["per doubling of", "groups", "runs", "drift %", "± %", "count on %"], rows)


def _worst(comparisons: Sequence[Comparison]) -> str:
    rows = (
        [
            row.record.id,
            f"{row.measured.iter_time_s:.2f}",
            f"{row.predicted.iter_time_s if row.predicted else 0.0:.2f}",
            percent(row.time_error, signed=True),
        ]
        for row in worst_rows(comparisons, NUM_WORST)
    )
    return table(["run", "measured s", "predicted s", "error %"], rows)


def _skipped(comparisons: Sequence[Comparison], found: Summary) -> str:
    rows = ([reason, str(len(names))] for reason, names in found.skipped.items())
    said = f"{sum(map(len, found.skipped.values()))} of {len(comparisons)} records:"
    return f"{said}\n\n{table(['reason', 'records'], rows)}"


def _held_out(found: CrossValidation) -> str:
    return f"{sentence(found)}\n\n{table(SPLIT_TITLES, error_rows(found))}"


def _constants(found: CrossValidation) -> str:
    return table(CONSTANT_TITLES, constant_rows(found))


def _adapters(record: Record) -> str:
    if record.lora is None:
        return ""
    return ", QLoRA" if record.lora.quantized_base_bits else ", LoRA"


def fine_tuning(comparisons: Sequence[Comparison]) -> str:
    """Time and memory of scored runs that are neither mixtures nor offloaded, by stack and GPU."""
    groups: dict[str, list[Comparison]] = defaultdict(list)
    for row in comparisons:
        record = row.record
        is_plain = record.model.moe is None and record.parallel.offload in (None, "none")
        if row.predicted is not None and record.is_scored and is_plain:
            groups[f"{record.framework}, {record.hardware.gpu}{_adapters(record)}"].append(row)
    rows = []
    for name, found in sorted(groups.items()):
        memory = [row.first_memory_error for row in found if row.first_memory_error is not None]
        times, bytes_ = summarize(time_errors(found)), summarize(memory)
        sizes = [str(times.n), percent(times.mape), percent(times.bias, signed=True)]
        sizes += [str(bytes_.n), percent(bytes_.mape), percent(bytes_.bias, signed=True)]
        rows.append([name, *sizes])
    titles = ["stack, GPU", "times", "mean %", "bias %", "peaks", "mean %", "bias %"]
    return table(titles, rows)


def other_vendors(comparisons: Sequence[Comparison]) -> str:
    """Times of scored runs on accelerators that are not NVIDIA's, by vendor, stack and GPU.

    Times that follow from TFLOPs count too: most of these have no other.
    """
    groups: dict[tuple[str, str], list[Comparison]] = defaultdict(list)
    for row in comparisons:
        record = row.record
        if row.predicted is None or row.time_error is None or not record.is_scored:
            continue
        vendor = to_cluster(record.hardware).accelerator.vendor
        if vendor != "NVIDIA":
            groups[vendor, f"{record.framework}, {record.hardware.gpu}"].append(row)
    rows = [
        (f"{vendor}: {name}", summarize(time_errors(found)))
        for (vendor, name), found in sorted(groups.items())
    ]
    whole = [row for found in groups.values() for row in found]
    return _errors("vendor: stack, GPU", [*rows, ("all", summarize(time_errors(whole)))])


def accuracy_page(
    comparisons: Sequence[Comparison],
    small: Sequence[Comparison],
    others: Sequence[Comparison],
    held_out: CrossValidation,
) -> str:
    """Return docs/accuracy.md with its tables anew."""
    found = summary(comparisons)
    every = [*comparisons, *others]
    return filled(
        PAGE,
        {
            "time": lambda: _time(found),
            "who": lambda: who_measured(every),
            "ranges": lambda: _ranges(every),
            "memory": lambda: _memory(comparisons, found),
            "ranking": lambda: _ranking(found),
            "scatter": lambda: _scatter(found),
            "pairs": lambda: _pairs(comparisons),
            "drift": lambda: _drift(comparisons),
            "fine_tuning": lambda: fine_tuning(small),
            "vendors": lambda: other_vendors([*comparisons, *small]),
            "held_out": lambda: _held_out(held_out),
            "constants": lambda: _constants(held_out),
            "worst": lambda: _worst(comparisons),
            "skipped": lambda: _skipped(comparisons, found),
        },
    )


def data_files(rows: Sequence[Comparison], others: Sequence[Comparison] = ()) -> dict[str, str]:
    """Files beside the frameworks that are taken from the comparison: name and text.

    ``others``: runs of the other files, which only the ranges of time are taken from too.
    """
    return {
        "uncertainty.yaml": uncertainty_text(rows),
        "time_uncertainty.yaml": time_uncertainty_text([*rows, *others]),
        "profile_runs.yaml": profile_runs_text([*rows, *others]),
        "ratio_errors.yaml": ratio_errors_text(rows),
        "evidence.csv": evidence_text(rows),
    }


def main() -> None:
    """Estimate the runs; write the page, and what plans know of its errors."""
    records = read_records(DATA / "published_runs.jsonl")
    rows = compare_all(records)
    small, *others = (
        compare_all(read_runs(DATA / f"{name}_runs.jsonl").records)
        for name in ("fine_tuning", "single_node", "ordinary", "later", "hybrid")
    )
    every = [*small, *(row for found in others for row in found)]
    held_out = cross_validate(samples_of(records), load_constants())
    for name, text in data_files(rows, every).items():
        (FRAMEWORKS / name).write_text(text, encoding="utf-8")
    PAGE.write_text(accuracy_page(rows, small, every, held_out), encoding="utf-8")


if __name__ == "__main__":
    main()
