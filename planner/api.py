"""The planner from Python: ``planner.plan(model, cluster)``, and what it returns."""

import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.answers.base import Answer, Plan
from planner.answers.layout import short_layout
from planner.answers.plan import answered
from planner.notes import Note
from planner.query.query import Query
from planner.query.resolve import places_for_file, resolve
from planner.report.sizing_words import unmet_limits

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

    from planner.report.emitted import PlanText


@dataclass(frozen=True, kw_only=True, repr=False)
class Planned:
    """Plans for a question, best first."""

    answer: Answer
    """All of it: contexts, searches, notes."""
    model: str
    cluster: str

    @property
    def best(self) -> Plan:
        """The first plan: what to run."""
        return self.answer.plans[0]

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The best plan of every layout, best first."""
        return self.answer.plans

    @property
    def ladder(self) -> tuple[Plan, ...]:
        """The best on at most a half, a quarter, ... of the first plan's GPUs."""
        return self.answer.ladder

    @property
    def notes(self) -> tuple[Note, ...]:
        """Notes on what was assumed."""
        return self.answer.notes

    def to_dict(self) -> dict[str, Any]:
        """The JSON document of ``planner plan --format json``."""
        from planner.answers.plan import beside_document
        from planner.report.document import document
        from planner.report.plan import plan_document

        return document("plan", plan_document(self.answer, beside_document(self.answer)))

    def to_rows(self) -> list[dict[str, Any]]:
        """A row per plan, ladder and frontier, with the columns of ``--format csv``."""
        from planner.report.tables import rows

        return list(rows(self.answer))

    def to_frame(self) -> Any:  # noqa: ANN401 - of whichever library is there
        """The rows as a DataFrame of pandas, or of polars where that alone is installed.

        Raises ImportError where neither is.
        """
        from importlib import import_module
        from importlib.util import find_spec

        for library in ("pandas", "polars"):
            if find_spec(library):
                return import_module(library).DataFrame(self.to_rows())
        raise ImportError("to_frame needs pandas or polars; to_rows needs neither")

    def save(self, path: str | Path, *, force: bool = False) -> Path:
        """Write the best plan to a file, as ``--save``; InputError where it is there already."""
        from planner.report.files import check_writable, write_atomically

        target = Path(path)
        check_writable(target, force=force)
        write_atomically(target, self._text(self.best).text)
        return target

    def emit(
        self, to: str, out: str | Path, *, launcher: str = "torchrun", force: bool = False
    ) -> list[Path]:
        """Write the best plan that a format carries as its files, as ``--emit``; their paths."""
        from planner.formats.registry import load_format
        from planner.launchers.schedulers import load_launcher
        from planner.report.emitted import output_files
        from planner.report.files import write_folder

        made, starter, folder = load_format(to), load_launcher(launcher), Path(out)
        chosen = next((each for each in self.plans if made.carries(each.framework)), self.best)
        files = output_files(made, starter, chosen.context, chosen.strategy, self._text(chosen))
        write_folder(folder, files, force=force)
        return [folder / each.name for each in files]

    def report(self, path: str | Path, *, launcher: str = "torchrun", force: bool = False) -> Path:
        """Write the best plan as one HTML page, as ``planner export``; InputError as ``save``."""
        from planner.formats.registry import load_format
        from planner.launchers.schedulers import load_launcher
        from planner.report.files import check_writable, write_atomically
        from planner.report.page import page_of, render_page

        target, best = Path(path), self.best
        check_writable(target, force=force, option="path")
        made, starter = load_format(best.framework), load_launcher(launcher)
        origin = f"planner.plan({self.model!r}, {self.cluster!r})"
        text = self._text(best)
        page = page_of(best, text, made, starter, origin=origin, answer=self.answer)
        write_atomically(target, render_page(page), option="path")
        return target

    def _text(self, chosen: Plan) -> "PlanText":
        from planner.answers.plan_file import plan_text
        from planner.report.emitted import PlanText

        text = plan_text(chosen, model=self.model, cluster=self.cluster)
        return PlanText(text=text, model=self.model, cluster=self.cluster)

    def __repr__(self) -> str:
        """Return the layout to run, in one line."""
        found, layout = self.best.estimate, short_layout(self.best.strategy)
        return (
            f"<{self.model} on {self.cluster}: {layout}; {found.iter_time_s:.3g} s an iteration, "
            f"MFU {found.mfu:.1%}; {len(self.plans)} layouts>"
        )

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        """The screen of ``planner plan``."""
        from rich.text import Text

        yield Text.from_ansi(self._screen(options.max_width))

    def _repr_html_(self) -> str:
        """The same in a notebook."""
        from html import escape

        return f"<pre style='line-height:1.2'>{escape(self._screen(120))}</pre>"

    def _screen(self, width: int) -> str:
        from planner.answers.plan import beside_screen
        from planner.report.plan import print_answer
        from planner.report.table import Screen

        text = io.StringIO()
        screen = Screen(
            width=width, file=text, highlight=False, emoji=False, markup=False, color_system=None
        )
        print_answer(self.answer, beside_screen(self.answer), screen)
        return text.getvalue()


def plan(model: str | Path, cluster: str | Path, *, top: int = 5, **options: Any) -> Planned:  # noqa: ANN401
    """Search all layouts of a model on a cluster, keep what fits, and rank.

    ``model`` and ``cluster`` are what ``planner plan`` takes, ``options`` its options with
    underscores: ``seq_len=8192``, ``framework="deepspeed"``, ``tp=8``, ``where=["gpus==64"]``.
    Raises TypeError for an unknown one, planner.errors.InputError with every problem of the
    question, NothingFitsError where no plan fits or keeps the limits.
    """
    query = Query.of(str(model), str(cluster), **options)
    found = answered(resolve(query), top)
    if not found.plans:
        raise unmet_limits(found)
    named = places_for_file(query)
    return Planned(answer=found, model=named[0], cluster=named[1])
