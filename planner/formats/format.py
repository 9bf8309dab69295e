"""Interface of a format of configuration files: writing a plan, reading a file, its rules.

A format is a folder ``planner/formats/NAME/`` with a module ``format.py`` that defines
``FORMAT``. Nothing outside the folder knows its keys.
"""

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from planner.cost.context import Context
from planner.documents.file import read_text
from planner.errors import ExpressError
from planner.spec.model import ModelSpec
from planner.spec.strategy import FIELDS, Strategy
from planner.spec.training import Training
from planner.spec.traits import Setting, TraitValue

Severity = Literal["error", "warning", "note"]
# Worst first.
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")
# Names that a message lists.
SHOWN = 8


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing said about a file: by which rule, where, and what is allowed there."""

    rule: str  # Dotted name, such as ``megatron.tp_divides_heads`` or ``memory.fits``
    severity: Severity
    message: str  # Error in words: what is wrong, what was given, what is allowed
    path: str
    key: str = ""
    """Key as the file spells it: ``zero_optimization.stage``, ``--tensor-model-parallel-size``."""
    line: int = 0  # Line from 1; 0: the file as a whole

    @property
    def kind(self) -> str:
        """The rule's name without the format it is of: ``unknown_key``, ``bad_value``."""
        return self.rule.rpartition(".")[2]

    def __str__(self) -> str:
        """Render as ``file:line::key: message``."""
        place = f"{self.path}:{self.line}" if self.line else self.path
        return f"{place}::{self.key}: {self.message}" if self.key else f"{place}: {self.message}"


def listed(names: Sequence[str]) -> str:
    """Join the first names, and say how many more there are."""
    rest = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{', '.join(names[:SHOWN])}{rest}"


# What a file can decide, by the names of Strategy, JobSpec and ModelSpec.
DECISIONS = (
    *("num_gpus", *FIELDS, "global_batch", "seq_len", "precision", "optimizer", "profile"),
    "mtp_layers",  # of multi-token prediction, where they are trained
    "gradient_bytes",  # of a gradient, as it is held and reduced
    "expert_exchange",  # what expert exchange runs beside: none, shared_expert or batches
    *("model.num_layers", "model.hidden_size", "model.num_heads", "model.num_kv_heads"),
    *("model.ffn_size", "model.vocab_size", "model.num_experts"),
)


@dataclass(frozen=True, kw_only=True)
class SourceText:
    """A file as it was read: UTF-8 without a byte-order mark, line ends as they are."""

    path: str
    text: str
    beside: Mapping[str, str] = field(default_factory=dict)
    """Texts of files that it names, by path, in place of those that are there."""


# Of a count of layers per stage: every layer of every stage, however many.
ALL = "all"


class PerChunk(NamedTuple):
    """Number of layers of every model chunk, in a file that leaves the number of layers open."""

    number: int


@dataclass(frozen=True, kw_only=True)
class Located:
    """A value of a file with its place, or the place alone."""

    value: Any = None
    key: str  # Key as the file spells it
    line: int = 0


@dataclass(frozen=True, kw_only=True)
class ModelInFile:
    """A model as a file describes or names it."""

    spec: ModelSpec
    places: Mapping[str, Located]
    """Places where the file states a field of ModelSpec (of its parts with a dot, ``moe.top_k``),
    the value as it is spelled; under an empty name where it names the model as a whole."""
    assumed: tuple[str, ...] = ()  # Properties of the model that the file does not state, in words


@dataclass(frozen=True, kw_only=True)
class ParsedConfig:
    """A file that was understood: its own settings, what they decide, and what is wrong."""

    format: str
    path: str
    settings: Mapping[str, Located]  # every key of the file, as the format spells it in full
    decisions: Mapping[str, Located]
    """Decisions by the names of DECISIONS; one left to a default of the framework that is not the
    neutral one (1, 0, none) has line 0. A value of None: another file, which the key names, decides
    it."""
    findings: tuple[Finding, ...] = ()
    """Unknown keys (with the nearest known one), values of the wrong kind, duplicates."""
    left_open: Mapping[str, Located] = field(default_factory=dict)
    """Decisions that the file states by a variable that nobody knows, or a recipe that it names."""
    made_for: str = ""
    """The program that the file is for where it is another's: no rule of the format holds."""
    run_by: str = ""
    """The training script where it is not the framework's own: what rules say of it is likely."""
    assumes: tuple[str, ...] = ()
    """Names of decisions on memory that another file or the script may override."""
    unpriced: str = ""  # Reason why plans state no memory and time for what the file starts
    named: tuple["ParsedConfig", ...] = ()
    """Files that it names: their findings and the rules of their formats hold too."""
    training: Training | None = None  # Training mode, where the file states it
    traits: tuple[Setting, ...] = ()  # Traits of the framework, as the file changes them
    longest: Located | None = None
    """Tokens that a sequence has at most, where shorter ones are not filled up to as many."""
    batching: Located | None = None
    """Kind of batching of documents, as --documents names it, where the file states it."""
    supposes: tuple[str, ...] = ()
    """Values that the file leaves to the defaults of its program, in words."""
    named_model: Located | None = None
    """The model by a name on the Hugging Face Hub, or by its folder."""
    own_model: ModelInFile | None = None  # the model that the file describes

    def line_of(self, key: str) -> int:
        """The line of a key, in full or as the file spells it; 0 where the file has none."""
        if key in self.settings:
            return self.settings[key].line
        return next((value.line for value in self.settings.values() if value.key == key), 0)


@dataclass(frozen=True, kw_only=True)
class CheckContext:
    """Inputs of rules besides the file."""

    num_gpus: int
    decisions: Mapping[str, Any]
    """Known decisions of DECISIONS: from the file, its defaults, the model, the cluster."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that the launch script sets, where the file is one."""
    compute_capability: float = 0.0  # Compute capability of the accelerator; 0: none, or not known
    vendor: str = ""  # Vendor of the accelerator; empty if not known


@dataclass(frozen=True, kw_only=True)
class Violation:
    """Violation of a rule, and the key that breaks it."""

    key: str
    message: str  # Error in words: what is wrong, what was given, what is allowed


@dataclass(frozen=True, kw_only=True)
class FormatRule:
    """A rule of the framework's own code, or one it misses until a job fails."""

    name: str  # Name of what must hold, in words joined by underscores, without the format's name
    source: str  # File of the framework that enforces it, or why it fails without being enforced
    check: Callable[[Mapping[str, Located], CheckContext], Iterable[Violation]]
    """Takes the settings of a reading."""
    severity: Severity = "error"
    enforced: bool = True
    """The framework's own start refuses it; False: it starts and fails later, or ignores it."""


@dataclass(frozen=True, kw_only=True)
class OutputFile:
    """A file to be written, named relative to the output folder."""

    name: str
    text: str
    is_executable: bool = False

    @property
    def content(self) -> bytes:
        """Bytes that are written."""
        return self.text.encode()


@dataclass(frozen=True, kw_only=True)
class ExplainedKey:
    """A line of the README that goes with a configuration."""

    key: str  # Key as the file spells it
    value: str
    why: str


@dataclass(frozen=True, kw_only=True)
class UserKey:
    """A key that the user adds to a written file: it decides the training, and no plan knows it."""

    file: str
    key: str  # Key as spelled in the file's JSON
    what: str
    section: str = ""  # the key is asked for while the file has this one; empty: always


@dataclass(frozen=True, kw_only=True)
class Emitted:
    """Output of a format for a plan."""

    files: tuple[OutputFile, ...]
    """The configuration itself; ``launch.sh`` and README.md are written by launchers."""
    command: tuple[str, ...]
    """Script and arguments that every process runs, after the launcher's own words. A word that the
    user must fill in is an environment variable in braces, ``${TRAIN_SCRIPT}``."""
    arguments: str = ""
    """The file among these whose words, quoted as a shell's, end the command."""
    run: tuple[str, ...] = ()
    """Words before these that no plan decides: data, tokenizer, learning rate, iterations."""
    mock: tuple[str, ...] = ()
    """Words in place of ``run`` that start it as it is, on made-up data; empty: there are none."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that every process needs."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Variables that the user fills in, with what each is for; those that launchers set (see
    ``own_launcher``) are none of the user's, whether they stand here or not."""
    open_keys: tuple[UserKey, ...] = ()
    decided: tuple[ExplainedKey, ...] = ()
    left_open: Mapping[str, str] = field(default_factory=dict)
    """Properties of the model that the configuration does not state, and the keys that do: neither
    memory nor time depend on them, and only the user knows them."""
    own_launcher: tuple[str, ...] = ()
    """Words that start one node's processes in place of torchrun, such as ``accelerate launch``.
    They are run on every node and may use ``${NNODES}``, ``${NPROC_PER_NODE}``, ``${NODE_RANK}``,
    ``${MASTER_ADDR}`` and ``${MASTER_PORT}``, which launchers set."""

    @property
    def words(self) -> tuple[str, ...]:
        """The whole command, the words of the file in it."""
        texts = {file.name: file.text for file in self.files}
        return (*self.command, *self.run, *shlex.split(texts.get(self.arguments, "")))

    @property
    def of_run(self) -> Mapping[str, str]:
        """Variables that only the words of the run need."""
        needed = " ".join(self.command)
        names = [name for name in self.variables if f"${{{name}}}" in " ".join(self.run)]
        return {name: self.variables[name] for name in names if f"${{{name}}}" not in needed}


# Of a file that a launcher takes beside a configuration: accelerators by host, and what is wrong.
Hosts = tuple[Mapping[str, int], tuple[Finding, ...]]


@dataclass(frozen=True, kw_only=True)
class Format:
    """A format of configuration files."""

    name: str
    title: str
    framework: str  # Whose traits and rules of the search hold: a name of FRAMEWORKS
    emit: Callable[[Context, Strategy], Emitted]
    """Raises ExpressError with every reason when the format cannot express the strategy. The
    same plan gives the same bytes."""
    recognise: Callable[[SourceText], bool]
    """Function that returns True if a file is of this format, from its content."""
    read: Callable[[SourceText], ParsedConfig]
    """Raises InputError where the file cannot be parsed at all."""
    rules: tuple[FormatRule, ...]
    write_into: Callable[[SourceText, Context, Strategy], str | SourceText]
    """The file with the strategy's decisions in it: keys that are none stay, in place and
    as they were written, comments too; beside it files that it names, where their keys change.
    Raises ExpressError."""
    borrowed: Mapping[str, tuple[FormatRule, ...]] = field(default_factory=dict)
    """Rules of other formats that hold too, by the format's name."""
    is_written: bool = True
    """False: it is read, checked and repaired, and no plan is written as a new file."""
    hosts: Callable[[SourceText], Hosts | None] = lambda _source: None
    """What a hostfile of its launcher says; None of other files."""
    versions: str = ""  # Releases of the framework that the format was checked against
    part: Callable[[Mapping[str, Located]], str | None] = lambda _settings: None
    """Engine, of several, that a file of these settings starts; a repair does not change it."""
    engine: Callable[[Mapping[str, Located]], str | None] = lambda _settings: None
    """The framework whose traits hold for a file of these settings, where it is another's."""
    problems: Callable[[Context], Iterable[str]] = lambda _context: ()
    """Values that no file can express whatever the layout: the model, precision, optimizer or
    profile."""
    launched: Callable[[ParsedConfig, Mapping[str, Located]], ParsedConfig] = lambda reading, _: (
        reading
    )
    """The reading of a file that is started with these variables."""
    of_model: Callable[[ParsedConfig, ModelSpec], ParsedConfig] = lambda reading, _: reading
    """The reading of a file that leaves sizes to the model, with what follows from them."""
    trains: tuple[str, ...] = ("full",)
    """Training modes that its files can express, by the names of ``--train``."""
    takes_adapters: bool = False
    """A file of adapters beside it says what is trained (planner.formats.adapters)."""
    script_recomputes: bool = False
    """True if the training script decides recomputation where a file does not state it."""
    support: Mapping[str, Mapping[str, TraitValue]] = field(default_factory=dict)
    """Traits of ``support`` of which the format can express no more than this, by framework."""
    narrows: Callable[[Context], Mapping[str, TraitValue]] = lambda _context: {}
    """The same of one model."""

    def framework_of(self, reading: ParsedConfig) -> str:
        """Name of the framework whose traits and search rules apply to a file."""
        return self.engine(reading.settings) or self.framework

    def refused(self, context: Context) -> Iterator[str]:
        """Yield what no file can express whatever the layout: ``problems``, and the training."""
        yield from self.problems(context)
        if context.traits.training.mode not in self.trains:
            allowed = ", ".join(self.trains)
            yield f"--train {context.traits.training.mode}: {self.name} files say {allowed}"

    def emitted(self, context: Context, strategy: Strategy) -> Emitted:
        """Express a plan by ``emit``; ExpressError also for an unsupported training mode."""
        self._refuse(context)
        return self.emit(context, strategy)

    def written_into(
        self,
        source: SourceText,
        context: Context,
        strategy: Strategy,
    ) -> SourceText:
        """Edit a file by ``write_into``; ExpressError also for an unsupported training mode."""
        self._refuse(context)
        made = self.write_into(source, context, strategy)
        return SourceText(path=source.path, text=made) if isinstance(made, str) else made

    def _refuse(self, context: Context) -> None:
        if context.traits.training.mode not in self.trains:
            lines = "\n".join(f"  {reason}" for reason in self.refused(context))
            raise ExpressError(f"{self.name} cannot express the plan:\n{lines}")

    def carries(self, framework: str) -> bool:
        """Return True if files of the format start the framework."""
        return framework == self.framework or framework in self.support

    def narrowed(self, context: Context) -> Context:
        """The context in which a search finds only what the format can say."""
        own = {**self.support.get(context.traits.name, {}), **self.narrows(context)}
        if not own:
            return context
        support = context.traits.support
        kept: dict[str, Any] = {}
        for name, limit in own.items():
            offered = getattr(support, name)
            kept[name] = offered and limit
            if isinstance(offered, tuple) and isinstance(limit, tuple):
                kept[name] = tuple(value for value in offered if value in limit)
        support = replace(support, **kept)
        return replace(
            context,
            traits=replace(context.traits, support=support),
            schedules=tuple(name for name in context.schedules if name in support.schedules),
            placements=tuple(name for name in context.placements if name in support.placements),
        )


def first_line(text: str) -> str:
    """The first line that is neither empty nor a comment, without blanks around it."""
    lines = (line.strip() for line in text.splitlines())
    return next((line for line in lines if line and not line.startswith("#")), "")


def read_source(path: Path | str) -> SourceText:
    """Return the file's text without a byte-order mark, line ends as they are.

    Raises InputError where it cannot be read as text.
    """
    return SourceText(path=str(path), text=read_text(path))
