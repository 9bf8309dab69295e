"""JSON documents of all commands: their common head, and the schemas of what is in them.

Row types (in ``answers/`` and beside the screens here) say what each document has; schemas are made
of them at run time.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, is_dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from planner import __version__
from planner.errors import InputError
from planner.spelling import did_you_mean

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


@dataclass(frozen=True)
class Kind:
    """A kind of document."""

    version: int  # raised when a field changes its meaning or goes
    question: str  # the command that writes it with ``--format json``
    row: str  # the type of its body, as module and name under ``planner``


# In the order of the commands. Row types are named, not imported: an answer needs no schema.
KINDS = {
    "plan": Kind(2, "plan", "answers.rows.PlanDocument"),
    "versus": Kind(2, "plan --versus KEY=VALUE", "answers.rows.VersusDocument"),
    "space": Kind(1, "plan --space", "answers.rows.SpaceDocument"),
    "why": Kind(4, "why", "answers.why.WhyDocument"),
    "largest": Kind(1, "plan --maximize micro-batch", "answers.rows.LargestDocument"),
    "scale": Kind(3, "size --gpus 8,16", "answers.scale.ScaleDocument"),
    "size": Kind(4, "size", "answers.size.SizeDocument"),
    "sweep": Kind(1, "sweep", "report.sweep.SweepRow"),
    "sweep-show": Kind(2, "sweep show", "report.sweep.SweepShowRow"),
    "job": Kind(3, "job", "report.job.JobDocument"),
    "sensitivity": Kind(4, "sensitivity", "answers.sensitivity.SensitivityDocument"),
    "memory": Kind(1, "explain MODEL CLUSTER memory", "answers.explain.MemoryDocument"),
    "explain": Kind(3, "explain", "answers.explain.ExplainDocument"),
    "collective": Kind(2, "collective", "answers.collective.CollectiveAnswer"),
    "emit": Kind(1, "emit", "report.emitted.EmitDocument"),
    "check": Kind(1, "check", "report.findings.CheckDocument"),
    "repair": Kind(3, "check FILE --fix", "report.repair.RepairDocument"),
    "compare": Kind(3, "compare LOG", "report.measure.CompareDocument"),
    "calibrate": Kind(2, "calibrate", "report.measure.CalibrateDocument"),
    "models": Kind(2, "show models", "answers.show.Models"),
    "model": Kind(2, "show models NAME", "answers.show.Model"),
    "hardware": Kind(2, "show hardware", "answers.show.Hardware"),
    "hardware-entry": Kind(2, "show hardware NAME", "answers.show.HardwareEntry"),
    "cluster": Kind(2, "show hardware 4xNODE", "answers.show.Cluster"),
    "detected": Kind(3, "show hardware --detect", "answers.show.Detected"),
    "recipes": Kind(2, "show recipes", "answers.show.Recipes"),
    "frameworks": Kind(1, "show frameworks", "answers.show.Frameworks"),
    "framework": Kind(2, "show frameworks NAME", "answers.show.Framework"),
}


def document(kind: str, body: "Mapping[str, Any] | DataclassInstance") -> dict[str, Any]:
    """A document as plain data: its head, and a body of plain data or a row."""
    return {
        "schema": kind,
        "schema_version": KINDS[kind].version,
        "planner_version": __version__,
        **(asdict(body) if is_dataclass(body) else body),
    }


def serialise(kind: str, body: "Mapping[str, Any] | DataclassInstance") -> str:
    """A document as indented JSON; raises ValueError for what JSON has no word for."""
    return json.dumps(document(kind, body), indent=2, allow_nan=False, default=asdict)


def commands() -> dict[str, str]:
    """The command that writes a document, by kind, sorted."""
    return {kind: f"planner {KINDS[kind].question} --format json" for kind in sorted(KINDS)}


def schema(kind: str) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a kind of document; raises InputError."""
    if kind not in KINDS:
        hint = did_you_mean(kind, KINDS) or f"known are {', '.join(sorted(KINDS))}"
        raise InputError.single("command line", "NAME", f"no document {kind!r}; {hint}")
    # pydantic takes a tenth of a second to import; only schemas need it.
    from pydantic import TypeAdapter

    module, _, name = KINDS[kind].row.rpartition(".")
    row = getattr(import_module(f"planner.{module}"), name)
    made = _closed(TypeAdapter(row).json_schema())
    version = KINDS[kind].version
    first = {
        "schema": {"const": kind},
        "schema_version": {"const": version},
        "planner_version": {"type": "string"},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:planner:{kind}:{version}",
        **made,
        "title": commands()[kind],
        "properties": first | made["properties"],
        "required": [*first, *made["required"]],
    }


def _closed(part: Any) -> Any:  # noqa: ANN401 - any part of a schema
    """Objects of dataclasses closed to other fields; they have all of theirs, defaults too."""
    if isinstance(part, list):
        return [_closed(each) for each in part]
    if not isinstance(part, dict):
        return part
    made = {key: _closed(value) for key, value in part.items()}
    fields = made.get("properties")
    if isinstance(fields, dict) and made.get("type") == "object":
        always = made.get("required", [])
        made["required"] = [name for name in fields if name in always or "default" in fields[name]]
        made["additionalProperties"] = False
    return made
