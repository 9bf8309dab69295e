"""Answers as screens and as JSON documents, and the schemas of what is in these.

Row types (in ``answers/`` and beside the screens here) say what each document has; schemas are made
of them at run time.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from functools import partial
from importlib import import_module, resources
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner import __version__
from planner.errors import InputError, did_you_mean
from planner.limits import printable

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from rich.console import Console, ConsoleOptions, RenderResult

    from planner.answers.base import Answer, Plan
    from planner.answers.plan import Beside
    from planner.notes import Note
    from planner.query.query import Query


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
    "largest": Kind(1, "plan --maximize micro-batch", "answers.largest.LargestDocument"),
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


def rendered(template: str, shown: Callable[[str], str] = printable, **values: Any) -> str:  # noqa: ANN401 - what it shows
    """A template filled in, texts as ``shown`` has them; functions among values are filters."""
    import jinja2

    def text(value: object) -> object:
        return value if hasattr(value, "__html__") else shown(str(value))

    environment = jinja2.Environment(
        autoescape=not template.endswith(".md.j2"),
        finalize=text,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {name: each for name, each in values.items() if callable(each)}
    source = resources.files(__package__).joinpath(template).read_text(encoding="utf-8")
    return environment.from_string(source).render(**values)


# Columns of a table of plans that stand on the screen, in its order.
ON_SCREEN = (
    *("table", "rank", "gpus", "dp", "tp", "pp", "cp", "ep", "zero_stage", "micro_batch"),
    *("recompute", "offload", "iter_time_s", "mfu", "peak_bytes"),
)


@dataclass(frozen=True, kw_only=True, repr=False)
class Shown:
    """An answer as a screen and as a document."""

    kind: str
    """Kind of the document."""
    found: Any = None
    """The answer itself."""
    body: Callable[..., Any] = lambda found: found
    """What the document of the answer has behind its head."""
    screen: Callable[..., None]
    """Prints the answer on a ``console``."""
    forms: Mapping[str, Callable[[], str]] = field(default_factory=dict)
    """Its text in other forms, by the words of ``--format``."""
    out: Path | None = None
    """File that a form or the document is written to, in place of standard output."""
    after: Callable[[], None] = lambda: None
    """What is done once it is shown: files are written, or it is raised that nothing will do."""
    exit_code: int = 0

    def to_dict(self) -> dict[str, Any]:
        """The JSON document of ``--format json``."""
        return document(self.kind, self.body(self.found))

    def to_json(self) -> str:
        """The same as indented text."""
        return serialise(self.kind, self.body(self.found))

    def text(self, width: int = 80) -> str:
        """The screen of the command, so many characters wide."""
        from planner.report.table import drawn

        return drawn(partial(self.screen, self.found), width)

    def __str__(self) -> str:
        """The screen of the command."""
        return self.text().rstrip("\n")

    def __repr__(self) -> str:
        """Return the first lines of the screen."""
        return "\n".join(str(self).splitlines()[:3])

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        """The screen of the command."""
        from rich.text import Text

        yield Text.from_ansi(self.text(options.max_width))

    def _repr_html_(self) -> str:
        from html import escape

        return f"<pre style='line-height:1.2'>{escape(self.text(120))}</pre>"


@dataclass(frozen=True, kw_only=True, repr=False)
class Planned(Shown):
    """Plans for a question, best first."""

    query: "Query"

    @classmethod
    def of(
        cls,
        answer: "Answer",
        query: "Query",
        told: "Beside | None" = None,
        *,
        after: Callable[[], None] = lambda: None,
        **shown: Any,  # noqa: ANN401 - as print_answer takes it
    ) -> "Planned":
        """The plans of an answer, and what is told beside them on the screen."""
        from planner.answers.plan import beside_document, beside_screen
        from planner.report.plan import plan_document, print_answer
        from planner.report.table import csv_text
        from planner.report.tables import CSV_COLUMNS, rows

        def screen(answer: "Answer", console: "Console") -> None:
            print_answer(answer, told or beside_screen(answer), console, **shown)

        return cls(
            kind="plan",
            found=answer,
            query=query,
            body=lambda answer: plan_document(answer, beside_document(answer)),
            screen=screen,
            forms={"csv": lambda: csv_text(rows(answer), CSV_COLUMNS)},
            after=after,
        )

    @property
    def answer(self) -> "Answer":
        """All of it: contexts, searches, notes."""
        found: Answer = self.found
        return found

    @property
    def best(self) -> "Plan":
        """The first plan: what to run."""
        return self.answer.plans[0]

    @property
    def plans(self) -> "tuple[Plan, ...]":
        """The best plan of every layout, best first."""
        return self.answer.plans

    @property
    def ladder(self) -> "tuple[Plan, ...]":
        """The best on at most a half, a quarter, ... of the first plan's GPUs."""
        return self.answer.ladder

    @property
    def notes(self) -> "tuple[Note, ...]":
        """Notes on what was assumed."""
        return self.answer.notes

    def to_rows(self) -> list[dict[str, Any]]:
        """A row per plan, ladder and frontier, with the columns of ``--format csv``."""
        from planner.report.tables import rows

        return list(rows(self.answer))

    def to_frame(self) -> Any:  # noqa: ANN401 - of whichever library is there
        """The rows as a DataFrame, screen's columns first; ImportError without pandas or polars."""
        library = next(filter(find_spec, ("pandas", "polars")), None)
        if library is None:
            raise ImportError("to_frame needs pandas or polars; to_rows needs neither")
        rows = [{name: row[name] for name in ON_SCREEN} | row for row in self.to_rows()]
        return import_module(library).DataFrame(rows)

    def save(self, path: str | Path, *, force: bool = False) -> Path:
        """Write the best plan to a file, as ``--save``; InputError where it is there already."""
        from planner.documents.file import write_atomically
        from planner.report.emitted import PlanText
        from planner.report.files import check_writable

        target = Path(path)
        check_writable(target, force=force)
        write_atomically(target, PlanText.of(self.best, self.query).text)
        return target

    def emit(
        self, to: str, out: str | Path, *, launcher: str = "torchrun", force: bool = False
    ) -> list[Path]:
        """Write the best plan that a format carries as its files, as ``--emit``; their paths."""
        from planner.formats.registry import load_format
        from planner.launchers import load_launcher
        from planner.report.emitted import PlanText, output_files
        from planner.report.files import write_folder

        made, starter, folder = load_format(to), load_launcher(launcher), Path(out)
        chosen = next((each for each in self.plans if made.carries(each.framework)), self.best)
        text = PlanText.of(chosen, self.query)
        files = output_files(made, starter, chosen.context, chosen.strategy, text)
        write_folder(folder, files, force=force)
        return [folder / each.name for each in files]

    def report(self, path: str | Path, *, launcher: str = "torchrun", force: bool = False) -> Path:
        """Write the best plan as one HTML page, as ``planner export``; InputError as ``save``."""
        from planner.documents.file import write_atomically
        from planner.formats.registry import load_format
        from planner.launchers import load_launcher
        from planner.report.emitted import PlanText
        from planner.report.files import check_writable
        from planner.report.page import page_of

        target, best = Path(path), self.best
        check_writable(target, force=force, option="path")
        made, starter = load_format(best.framework), load_launcher(launcher)
        text = PlanText.of(best, self.query)
        origin = f"planner.plan({text.model!r}, {text.cluster!r})"
        page = page_of(best, text, made, starter, origin=origin, answer=self.answer)
        write_atomically(target, page, option="path")
        return target

    def __repr__(self) -> str:
        """Return the layout to run, in one line."""
        from planner.answers.layout import short_layout

        found, layout = self.best.estimate, short_layout(self.best.strategy)
        return (
            f"<{self.query.model} on {self.query.cluster}: {layout}; {found.iter_time_s:.3g} s an "
            f"iteration, MFU {found.mfu:.1%}; {len(self.plans)} layouts>"
        )
