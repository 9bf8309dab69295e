"""The decisions of a reading as numbers and words, held to what a layout can be."""

from collections.abc import Sequence

from planner.check.layout import Place, Places
from planner.formats.format import ALL, Finding, PerChunk, Reading
from planner.limits import MAX_GPUS
from planner.spec.strategy import FieldSpec


class Values:
    """Reads decisions one by one; what is wrong with them becomes findings."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        stated = {**reading.left_open, **reading.decisions}
        places = {name: Place(key=each.key, line=each.line) for name, each in stated.items()}
        self.places = Places(path=reading.path, of=places)
        self.findings: list[Finding] = []
        self.assumed: list[str] = []
        """What neither file nor job say, in words."""

    def add(self, rule: str, message: str, *decisions: str) -> None:
        """Note a finding at the first of the decisions that the file states."""
        self.findings.append(self.places.finding(rule, message, *decisions))

    def given(self, name: str) -> object:
        """The value of a decision; None where the file leaves it open."""
        value = self.reading.decisions.get(name)
        return None if value is None else value.value

    def whole(self, name: str, *, least: int = 1, most: int = MAX_GPUS) -> int | None:
        """A whole number in its range; None where it is not given or wrong."""
        value = self.given(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            text = f"{name} must be a whole number from {least} to {most:,}; given {_shown(value)}"
            self.add("job.value", text, name)
            return None
        return value

    def flag(self, name: str) -> bool | None:
        """A switch; None where it is not given or wrong."""
        value = self.given(name)
        if value is None or isinstance(value, bool):
            return value
        self.add("job.value", f"{name} must be true or false; given {_shown(value)}", name)
        return None

    def word(self, name: str, allowed: Sequence[str], rule: str = "job.value") -> str | None:
        """One of the words allowed; None where it is not given or wrong."""
        value = self.given(name)
        if value is None:
            return None
        if not isinstance(value, str) or value not in allowed:
            text = f"{name} must be one of {', '.join(allowed)}; given {_shown(value)}"
            self.add(rule, text, name)
            return None
        return value

    def of(self, name: str, decision: FieldSpec, usual: int | str) -> int | str:
        """What the file says of a column of strategies; the usual value where nothing or wrong."""
        found: int | str | None
        if decision.words:
            found = self.word(name, decision.words)
        elif decision.is_flag:
            found = self.flag(name)
        else:
            found = self.whole(name, least=decision.least, most=decision.most)
        return usual if found is None else found

    def words(self, name: str) -> tuple[str, ...] | None:
        """A list of words; None where it is not given or wrong."""
        value = self.given(name)
        if value is None:
            return None
        if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
            self.add("job.value", f"{name} must be a list of words; given {_shown(value)}", name)
            return None
        return tuple(value)

    def counts(
        self, name: str, layers: tuple[int, ...] | None = None, vpp: int = 1
    ) -> tuple[int, ...] | None:
        """A number per stage, ``all`` standing for ``layers``; None where not given or wrong.

        So many of every chunk are ``vpp`` times as many of the stage, as far as it holds them.
        """
        value = self.given(name)
        if value is None:
            return None
        if value == ALL and layers is not None:
            return layers
        if isinstance(value, PerChunk) and layers is not None:
            return tuple(min(vpp * value.number, held) for held in layers)
        is_list = isinstance(value, list | tuple) and 0 < len(value) <= MAX_GPUS
        if not is_list or not all(_is_count(one) for one in value):  # type: ignore[attr-defined]
            text = f"{name} needs one whole number per stage; given {_shown(value)}"
            self.add("job.value", text, name)
            return None
        return tuple(value)  # type: ignore[arg-type]


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_GPUS


def _shown(value: object) -> str:
    """The value, cut short; numbers of thousands of digits cannot be printed."""
    try:
        text = repr(value)
    except ValueError:
        return "a number of thousands of digits"
    return text if len(text) <= 60 else f"{text[:57]}..."
