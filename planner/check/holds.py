"""Asks whether a file can hold an edit: in its own keys, for the engine that it starts."""

from collections.abc import Callable
from dataclasses import dataclass, field

from planner.check.layout import Layout
from planner.errors import ExpressError, InputError
from planner.formats.format import Format, SourceText
from planner.plans.repair import repaired_strategy
from planner.search.edits import Edit

MOST_REFUSED = 30
"""Edits in a row that a file cannot hold, after which no more are looked at."""


class GaveUpError(Exception):
    """Too many edits in a row were refused."""


@dataclass(kw_only=True)
class Patience:
    """Counts refusals in a row."""

    most: int
    num_refused: int = 0

    def note(self, *, is_accepted: bool) -> bool:
        """Return the answer; raises GaveUpError after ``most`` refusals in a row."""
        self.num_refused = 0 if is_accepted else self.num_refused + 1
        if self.num_refused >= self.most:
            raise GaveUpError
        return is_accepted


@dataclass(kw_only=True)
class Holds:
    """True of the edits that a file can hold. Raises GaveUpError."""

    kind: Format
    source: SourceText
    layout: Layout
    part: str | None
    """Of the framework, that the file starts."""
    patience: Patience = field(default_factory=lambda: Patience(most=MOST_REFUSED))

    def __call__(self, edit: Edit) -> bool:
        """Whether the file can be written with the edit and then starts what it did."""
        return self.patience.note(is_accepted=self._is_written(edit))

    def _is_written(self, edit: Edit) -> bool:
        strategy = repaired_strategy(self.layout.strategy, edit)
        try:
            text = self.kind.written_into(self.source, self.layout.context, strategy)
            after = self.kind.read(SourceText(path=self.source.path, text=text))
        except (ExpressError, InputError):
            return False
        return self.kind.part(after.settings) == self.part


Ask = Callable[[], Holds]
"""Makes a question with a patience of its own."""
