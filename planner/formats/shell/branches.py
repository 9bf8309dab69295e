"""What variables hold behind the branches of a script, whose conditions are seldom known."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from planner.formats.shell.word import Word

MAX_DEPTH = 50
"""Of statements in each other; what stands deeper counts as if it had no condition."""


@dataclass(frozen=True, kw_only=True)
class Held:
    """What a variable holds; neither where it is not set."""

    scalar: Word | None = None
    array: tuple[Word, ...] | None = None

    @property
    def text(self) -> str:
        """All of it in one line, to compare."""
        words = (*(self.array or ()), *((self.scalar,) if self.scalar else ()))
        return " ".join(word.text for word in words).strip()


@dataclass(kw_only=True)
class Variables:
    """The variables that a script has set so far."""

    scalars: dict[str, Word] = field(default_factory=dict)
    arrays: dict[str, tuple[Word, ...]] = field(default_factory=dict)

    def held(self, name: str) -> Held:
        """What a variable holds now."""
        return Held(scalar=self.scalars.get(name), array=self.arrays.get(name))

    def hold(self, name: str, held: Held) -> None:
        """Set a variable to what it held."""
        self.scalars.pop(name, None)
        self.arrays.pop(name, None)
        if held.scalar is not None:
            self.scalars[name] = held.scalar
        if held.array is not None:
            self.arrays[name] = held.array


@dataclass(kw_only=True)
class _Statement:
    """An ``if`` or ``case`` that is not closed yet."""

    closing: str
    is_reached: bool
    """Whether the statement itself may run."""
    runs: bool
    """Whether the branch we are in may run."""
    before: dict[str, Held] = field(default_factory=dict)
    """What variables that a branch sets held before the statement."""
    outcomes: dict[str, list[Held]] = field(default_factory=dict)
    """What each holds at the end of the branches that set it."""
    names: dict[str, None] = field(default_factory=dict)
    """Set in the branch we are in."""
    ended: int = 0
    """Branches after which the script goes on."""
    is_certain: bool = False
    """Whether the branch we are in runs for sure, if it is reached."""
    is_decided: bool = False
    """Whether an earlier branch runs for sure."""
    is_complete: bool = False
    """Whether one of the branches runs."""
    leaves: bool = False
    is_empty: bool = True


@dataclass(kw_only=True)
class Branches:
    """The statements around a command, and what becomes of the variables they set."""

    variables: Variables
    open: list[_Statement] = field(default_factory=list)
    ignored: int = 0
    """Open statements beyond MAX_DEPTH."""

    @property
    def runs(self) -> bool:
        """Whether the command may run: its branch is not known to be passed over."""
        return not self.open or self.open[-1].runs

    def begin(self, closing: str) -> None:
        """A statement that the word ``closing`` closes."""
        if len(self.open) == MAX_DEPTH or self.ignored:
            self.ignored += 1
            return
        self.open.append(_Statement(closing=closing, is_reached=self.runs, runs=self.runs))

    def decide(self, condition: bool | None) -> None:
        """The branch of a condition begins; None where the condition is not known."""
        statement = self._current("fi")
        if statement is None:
            return
        may_run = statement.is_reached and not statement.is_decided
        statement.runs = may_run and condition is not False
        statement.is_certain = condition is True
        statement.is_empty = False

    def turn(self, closing: str, *, is_last: bool = False) -> None:
        """The next branch begins; the last one runs where no other does."""
        statement = self._current(closing)
        if statement is None:
            return
        self._leave_branch(statement)
        statement.is_decided = statement.is_decided or statement.is_certain
        statement.is_complete = statement.is_complete or is_last or statement.is_decided
        statement.runs = statement.is_reached and not statement.is_decided
        statement.is_certain = False
        statement.is_empty = not is_last

    def end(self, closing: str) -> None:
        """The statement is closed: its variables hold what all branches agree on."""
        if self.ignored:
            self.ignored -= 1
            return
        statement = self._current(closing)
        if statement is None:
            return
        self._leave_branch(statement)
        self.open.pop()
        complete = statement.is_complete or statement.is_certain
        num_ends = statement.ended + (not complete)
        for name, before in statement.before.items():
            found = statement.outcomes.get(name, [])
            passed = [before] if len(found) < num_ends or not found else []
            self.variables.hold(name, _agreed(name, [*passed, *found]))
            self._note(name, before)

    def assigns(self, name: str, *, keeps: bool) -> None:
        """A variable is about to be set; ``keeps``: to what it holds and more."""
        if self.open and not (keeps and name not in self.open[-1].before):
            self._note(name, self.variables.held(name))

    def passes(self, *, leaves: bool) -> None:
        """A command stands in the branch; ``leaves``: it ends the script."""
        if self.open:
            self.open[-1].is_empty = False
            self.open[-1].leaves = self.open[-1].leaves or leaves

    def completes(self) -> None:
        """One of the branches of the statement runs for sure."""
        if self.open:
            self.open[-1].is_complete = True

    def _note(self, name: str, before: Held) -> None:
        if self.open:
            self.open[-1].before.setdefault(name, before)
            self.open[-1].names[name] = None

    def _current(self, closing: str) -> _Statement | None:
        is_open = bool(self.open) and not self.ignored
        return self.open[-1] if is_open and self.open[-1].closing == closing else None

    def _leave_branch(self, statement: _Statement) -> None:
        counts = statement.runs and not statement.leaves and not statement.is_empty
        for name in statement.names:
            if counts:
                statement.outcomes.setdefault(name, []).append(self.variables.held(name))
            self.variables.hold(name, statement.before[name])
        statement.ended += counts
        statement.names.clear()
        statement.leaves = False


def _agreed(name: str, found: Iterable[Held]) -> Held:
    """What is held whichever branch ran; where branches differ it is not known."""
    by_text = {held.text: held for held in found}
    given = [held for text, held in by_text.items() if text]
    if len(given) < 2:
        return given[0] if given else next(iter(by_text.values()))
    written = f"${{{name}}}"
    words = (word for held in given for word in (held.scalar, *(held.array or ())) if word)
    spans = next((word.spans[:1] for word in words if word.spans), ((0, 0),))
    unknown = Word(text=written, spans=spans * len(written), unknown=(written,))
    return Held(scalar=unknown)
