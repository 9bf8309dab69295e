"""The published runs a plan can name beside its estimate, as a small table."""

import csv
import io
from collections.abc import Sequence
from dataclasses import fields

from planner.answers.evidence import PublishedRun
from planner.layers.parameters import count_active_parameters, count_parameters
from tools.validation.compare import Comparison
from tools.validation.mapping import to_run


def _row(row: Comparison) -> dict[str, str]:
    record, run = row.record, to_run(row.record)
    context, strategy = run.context, run.strategy
    accelerator = context.cluster.accelerator
    memory = row.first_memory_error
    values = {
        "id": record.id,
        "model": record.model.name,
        "kind": context.model.kind,
        "params": count_parameters(context.model),
        "active_params": count_active_parameters(context.model),
        "accelerator": accelerator.name,
        "vendor": accelerator.vendor,
        "architecture": accelerator.architecture,
        "gpus": strategy.num_gpus,
        **{name: getattr(strategy, name) for name in ("dp", "tp", "pp", "cp", "ep", "zero_stage")},
        "precision": context.job.precision,
        "framework": context.traits.name,
        "profile": context.traits.profile,
        "predicted_s": f"{row.predicted.iter_time_s if row.predicted else 0.0:.5g}",
        "measured_s": f"{row.measured.iter_time_s or 0.0:.5g}",
        "memory_error": "" if memory is None else f"{memory:.4f}",
        "source": record.source.title,
        "where": record.source.where,
    }
    return {name: str(value) for name, value in values.items()}


def evidence_text(rows: Sequence[Comparison]) -> str:
    """Return planner/frameworks/evidence.csv: the runs of the headline, in order."""
    text = io.StringIO()
    columns = [field.name for field in fields(PublishedRun)]
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        if row.in_headline and row.time_error is not None:
            writer.writerow(_row(row))
    return text.getvalue()
