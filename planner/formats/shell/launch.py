"""The options of a file of words, and what starts them: processes of torchrun and Slurm.

Sources: torch/distributed/run.py, whose parser takes shortened names and ``_`` for ``-``;
https://slurm.schedmd.com/sbatch.html, output environment variables.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

from planner.errors import ExpressError, InputError, did_you_mean
from planner.formats.format import Finding, Located, Severity, SourceText, listed
from planner.formats.settings import Settings, finding_at, given
from planner.formats.shell.script import read_script, read_words
from planner.formats.shell.word import (
    NNODES,
    NPROC_PER_NODE,
    Command,
    Lines,
    Word,
    launcher_values,
)

# Options of torchrun without a value, and those with one.
SWITCHES = "--help --standalone --module --no-python --run-path --virtual-local-rank -h -m"
WITH_VALUE = """
--nnodes --nproc-per-node --rdzv-backend --rdzv-endpoint --rdzv-id --rdzv-conf --max-restarts
--monitor-interval --start-method --event-log-handler --role --log-dir --redirects --tee
--local-ranks-filter --duplicate-stdout-filters --duplicate-stderr-filters --node-rank
--master-addr --master-port --local-addr --logs-specs --numa-binding --signals-to-handle
--shutdown-timeout -r -t
"""


def launcher_settings(words: Sequence[Word], lines: Lines) -> dict[str, Located]:
    """Numbers of nodes and processes per node; None where they are not numbers."""
    found: dict[str, Located] = {}
    for option, word in launcher_values(words):
        number, line = number_of(word.text), lines.at(word.start)
        found[option] = Located(value=number, key=option, line=line)
    return found


def variables(environment: Mapping[str, Word], lines: Lines) -> dict[str, Located]:
    """Variables that are known, by their names."""
    return {
        name: Located(value=word.text, key=name, line=lines.at(word.start))
        for name, word in environment.items()
        if not word.unknown
    }


def number_of(text: str) -> int | None:
    """A number of nodes or processes; None where the text is none."""
    return int(text) if re.fullmatch("[0-9]{1,8}", text) and int(text) > 0 else None


def processes(settings: Settings) -> Located | None:
    """Nodes times processes per node; one node where a launcher names none.

    What torchrun leaves open, or where Slurm starts the processes, is what Slurm gives the job.
    """

    def first(*names: str) -> Located | None:
        return next((settings[name] for name in names if given(settings, name)), None)

    is_slurm = NPROC_PER_NODE not in settings
    per_node = first(NPROC_PER_NODE, "--gpus-per-node", "--gres", "--ntasks-per-node")
    names_nodes = NNODES in settings or (is_slurm and "--nodes" in settings)
    nodes = first(NNODES, "--nodes")
    total = first("--gpus", "--ntasks") if is_slurm else None
    if total and (per_node is None or not names_nodes):
        return total if total.value > 1 else None
    # One process a node under Slurm is a launcher of its own, of which nothing is known.
    if per_node is None or (is_slurm and per_node.value == 1) or (names_nodes and nodes is None):
        return None
    count = per_node.value * (nodes.value if nodes and names_nodes else 1)
    # More than one job may start: a misread word.
    return None if count > 10**7 else replace(per_node, value=count)


def open_processes(settings: Settings) -> dict[str, Located]:
    """The processes, where a launcher says them by a variable that nobody knows."""
    stated = [settings[name] for name in (NNODES, NPROC_PER_NODE) if name in settings]
    is_open = any(each.value is None for each in stated) and processes(settings) is None
    return {"num_gpus": stated[-1]} if is_open else {}


def processes_edit(
    source: SourceText, words: Sequence[Word], num_gpus: int
) -> Iterator[tuple[int, int, str]]:
    """Yield edits (start, end, text) after which the launcher starts ``num_gpus`` processes.

    Numbers of the whole job change, Slurm's too, never what a node has; numbers that come from
    elsewhere stay. Raises ExpressError where no whole nodes result or a number has several places.
    """
    values = list(launcher_values(words))
    settings = launcher_settings(words, Lines(source.text))
    count = processes(settings)
    if count is None or count.value == num_gpus or any(word.unknown for _, word in values):
        return
    # Options whose numbers are those of the whole job.
    totals = [each for each in values if each[0] in (NNODES, "--nodes", "--ntasks", "--gpus")]
    of_slurm = {word.origin for name, word in totals if name != NNODES}
    wanted = [(number_of(word.text) or 0) * num_gpus for _, word in totals]
    if not totals or any(number % count.value for number in wanted):
        own = settings.get(NPROC_PER_NODE)
        per_node = own.value if own else f"{count.value} or less"
        raise ExpressError(
            f"{source.path}: {num_gpus} processes do not make up whole nodes of "
            f"{per_node}; change the launcher's words first"
        )
    for (name, word), number in zip(totals, wanted, strict=True):
        if name == NNODES and word.origin in of_slurm:
            continue
        if word.place is None:
            raise ExpressError(f"{source.path}: {word.text[:60]!r} is put together from variables")
        yield *word.place, str(number // count.value)


def unknown_options(words: Sequence[Word]) -> Iterator[tuple[Word, str]]:
    """The first option that torchrun does not know, which ends the job at once, and a near one.

    What a variable hides is not looked into.
    """
    switches = SWITCHES.split()
    known = [*switches, *WITH_VALUE.split()]
    names = [word.text.rpartition("/")[2] for word in words]
    programs = ("torchrun", "torch.distributed.run")
    at = next((at + 1 for at, name in enumerate(names) if name in programs), len(words))
    while at < len(words):
        word = words[at]
        if word.unknown or not word.text.startswith("-"):
            return
        spelled, sign, _ = word.text.partition("=")
        # In full or shortened.
        name = spelled.replace("_", "-") if spelled.startswith("--") else spelled[:2]
        found = min((each for each in known if each.startswith(name)), default=None)
        if found is None:
            yield word, did_you_mean(spelled, known)
            return
        is_joined = bool(sign) or (len(found) == 2 and spelled != found)
        at += 1 if is_joined or found in switches else 2


@dataclass(frozen=True, kw_only=True)
class Entry:
    """An option of a file with the words of its value."""

    name: str
    word: Word
    values: tuple[Word, ...] = ()
    joined: str | None = None  # the value where it is written behind an equals sign
    spelled: str = ""  # as the file has it, where that is not the name

    @property
    def unknown(self) -> tuple[str, ...]:
        """Parts of the value that could not be resolved."""
        words = self.values if self.joined is None else (self.word,)
        return tuple(name for word in words for name in word.unknown)

    @property
    def texts(self) -> list[str]:
        """Words of the value."""
        if self.joined is not None:
            return [self.joined]
        return [word.text for word in self.values]


Launch = tuple[Command, Sequence[Entry]]
# The one that is read, and all that the file has in its order; none of a list of words.
Launches = tuple[Launch, Sequence[Launch]]


def launches_in(
    source: SourceText,
    starts: Callable[[Iterable[Command]], Iterable[Command]],
    options: Callable[[Sequence[Word]], list[Entry]],
    weight: Callable[[Launch], int],
    *,
    is_list: bool,
    lacking: str = "",
) -> Launches:
    """The launches of a program in a script, or the options of a file that is a list of words.

    ``starts`` finds the program in commands, or in those that variables hold where no other has
    any ``weight``. The one that is read has most. InputError, with what is ``lacking``: none.
    """
    if is_list:
        words = read_words(source)
        return (Command(words=words, is_list=True), options(words)), ()
    script = read_script(source)

    def launches(commands: Iterable[Command]) -> Iterator[Launch]:
        return (
            (
                replace(command, environment={**script.environment, **command.environment}),
                options(command.words),
            )
            for command in starts(commands)
        )

    found = list(launches(script.commands))
    if not any(map(weight, found)):
        found = list(launches(script.kept()))
    if not any(map(weight, found)):
        lines = Lines(source.text)
        places = (f"{what} in line {lines.at(at)}" for at, what in script.unread)
        unread = f"; not looked into: {listed([*places])}" if script.unread else ""
        raise InputError.single(source.path, "", f"{lacking}{unread}")
    return max(found, key=weight), found


def strays(words: Sequence[Word], entries: Sequence[Entry]) -> list[Word]:
    """Words that belong to no option."""
    taken = {id(word) for entry in entries for word in (entry.word, *entry.values)}
    return [word for word in words if id(word) not in taken]


def grouped(
    words: Sequence[Word],
    is_option: Callable[[str], bool],
    most: Callable[[str], int | None],
) -> list[Entry]:
    """Options with their values.

    ``most`` says how many words an option takes without an equals sign; None: all up to the next.
    """
    starts = [at for at, word in enumerate(words) if is_option(word.text)]
    found: list[Entry] = []
    for at, end in pairwise([*starts, len(words)]):
        word, *behind = words[at:end]
        name, sign, joined = word.text.partition("=")
        values = () if sign else tuple(behind[: most(name)])
        found.append(Entry(name=name, word=word, values=values, joined=joined if sign else None))
    return found


@dataclass(kw_only=True)
class WordsReader:
    """Settings and findings of a file, as they come."""

    format: str
    source: SourceText
    settings: dict[str, Located] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    keeps_open: bool = True
    """The value of an option that is not resolved, or wrong, is None; False: as if not given."""

    @cached_property
    def lines(self) -> Lines:
        """Lines of the file."""
        return Lines(self.source.text)

    def placed(self, entry: Entry, value: object = None) -> Located:
        """A value with the place of its option."""
        key = entry.spelled or entry.name
        return Located(
            value=value,
            key=key[:120],
            line=self.lines.at(entry.word.start),
        )

    def report(
        self, at: Entry | Located, rule: str, message: str, severity: Severity = "error"
    ) -> None:
        """Note what is wrong with an option or a word."""
        place = self.placed(at) if isinstance(at, Entry) else at
        self.findings.append(
            finding_at(f"{self.format}.{rule}", self.source.path, place, message, severity)
        )

    def take(
        self,
        entries: Sequence[Entry],
        value: Callable[[Entry], object],
        branches: Sequence[int] = (),
    ) -> None:
        """Values by option, the last one of each; a ValueError says what is wrong with one.

        ``branches`` are the places where a script goes on with another branch.
        """
        before: dict[str, Entry] = {}
        for entry in entries:
            if other := before.get(entry.name):
                line = self.lines.at(other.word.start)
                first, last = sorted((other.word.start, entry.word.start))
                severity: Severity = "warning"
                says = "given again; the last one counts, another"
                if any(first < place < last for place in branches):
                    severity, says = "note", "given in two branches; this one is checked, the other"
                self.report(entry, "duplicate_key", f"{says} is in line {line}", severity)
            before[entry.name] = entry
            found, is_open = None, bool(entry.unknown)
            try:
                found = None if is_open else value(entry)
            except ValueError as error:
                is_open = True
                self.report(entry, "bad_value", str(error))
            if self.keeps_open or not is_open:
                self.settings[entry.name] = self.placed(entry, found)

    def note_open(self, entries: Sequence[Entry]) -> None:
        """Report what variables leave open in one note: a script given its sizes has many."""
        if not entries:
            return
        first, *others = entries
        parts = ", ".join(dict.fromkeys(first.unknown or first.word.unknown))
        message = f"{parts[:80]} is not set in the file, or branches differ; taken as not known"
        if others:
            names = listed([*dict.fromkeys(each.name for each in entries)])
            message = (
                f"{len(entries)} options are taken as not known, whose variables the file does not "
                f"set, or on which branches differ: {names}"
            )
        self.report(first, "unresolved", message, "note")

    def take_launcher(self, command: Command) -> dict[str, Located]:
        """Return the settings of the launcher's words; report the first that is not known."""
        for word, hint in unknown_options(command.launcher):
            entry = Entry(name=word.text.partition("=")[0], word=word)
            message = f"torchrun has no such option; {hint}".removesuffix("; ")
            self.report(entry, "unknown_key", message)
        return launcher_settings(command.launcher, self.lines)
