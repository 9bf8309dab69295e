"""The options that state or narrow a question, in one table.

Signatures and help of commands, keywords of the Python API, axes of sweeps and keys of
planner.toml all derive from OPTIONS. Nothing here loads NumPy: commands read the table at start-up.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from planner.errors import did_you_mean
from planner.limits import MAX_BATCH, MAX_IMBALANCE, MAX_MTP_LAYERS, MAX_SEQ_LEN, brief
from planner.query.words import SAME_OPTIONS, elsewhere, length, seconds
from planner.spec.strategy import RECOMPUTE_WORDS, SEARCHED_FIELDS, STRATEGY_FIELDS, FieldSpec
from planner.spec.training import ALL_LINEAR, MAX_RANK, TARGET_GROUPS, USUAL_RANK

Group = Literal["job", "software", "layout", "narrowing", "goal", "limits"]
PANELS: Mapping[Group, str] = {
    "job": "Job",
    "software": "Software",
    "layout": "Layout: what is not given is searched",
    "narrowing": "Search",
    "goal": "What plans are best at",
    "limits": "Limits of the job",
}
GROUPS: tuple[Group, ...] = tuple(PANELS)
PLACES = ("model", "cluster")


@dataclass(frozen=True, kw_only=True)
class Option:
    """One option of a question."""

    name: str  # as a Python keyword
    of: Group
    help: str
    kind: type = str
    parse: Callable[[str], Any] | None = None  # of a text; ValueError says what is wrong with it
    allowed: tuple[float, float] | None = None  # least and most of a number
    unit: str = ""  # of those
    many: bool = False  # may be repeated
    metavar: str = ""
    default: str | None = None
    spelled: str = ""  # on the command line, where not as the keyword
    usual: bool = False  # shown by --help; --help-all shows every option
    sweeps: bool = True  # may be an axis of a sweep

    @classmethod
    def of_field(cls, name: str, known: FieldSpec) -> "Option":
        """Return the option of a field of strategies: ``8`` or ``4|8``, or a switch."""
        words = f": {', '.join(known.words)}" if known.words else ""
        about = known.about[0].upper() + known.about[1:]
        is_flag = known.value_type is bool
        return cls(
            name=name,
            of="layout",
            kind=bool if is_flag else str,
            help=f"{about}{words}." if is_flag else f"{about}{words}; a|b for either.",
            usual=name in ("tp", "pp"),
        )

    @property
    def flag(self) -> str:
        """Option as written on the command line."""
        return f"--{self.spelled or self.name.replace('_', '-')}"

    def read(self, given: object) -> Any:  # noqa: ANN401 - of the option's kind
        """Return the value that a text or a Python value says; ValueError where it is none."""
        if not self.many:
            return self._read(given)
        if isinstance(given, Mapping):  # fix={"tp": 8}
            return tuple(f"{name}={word_of(value)}" for name, value in given.items())
        several = given if isinstance(given, list | tuple) else [given]
        return tuple(self._read(each) for each in several)

    def _read(self, given: object) -> Any:  # noqa: ANN401
        if self.parse is not None:
            return self.parse(str(given))
        if self.kind is bool:
            words = {"on": True, "true": True, "1": True, "off": False, "false": False, "0": False}
            found = given if isinstance(given, bool) else words.get(str(given).lower())
            if found is None:
                raise ValueError(f"must be on or off; given {brief(given)}")
            return found
        if self.kind is str:
            return word_of(given)
        wanted = "a whole number" if self.kind is int else "a number"
        try:
            value = None if isinstance(given, bool) else self.kind(given)
        except (TypeError, ValueError, OverflowError):
            value = None
        if value is None or (value != given and not isinstance(given, str)):
            raise ValueError(f"must be {wanted}; given {brief(given)}")
        return value

    def check(self, value: Any) -> None:  # noqa: ANN401 - what it has read
        """Raise ValueError where a number is out of its range."""
        if self.allowed is None or self.allowed[0] <= value <= self.allowed[1]:
            return
        form = "," if self.kind is int else "g"
        low, high = (format(each, form) for each in self.allowed)
        raise ValueError(f"must be from {low} to {high}{self.unit}; given {value:g}")

    def words(self, value: object) -> Iterator[str]:
        """Yield the words of the command line that say a value."""
        if self.kind is bool:
            yield self.flag if value else self.off_flag
            return
        for each in value if isinstance(value, tuple) else (value,):
            yield self.flag
            yield f"{each:.15g}" if isinstance(each, float) else str(each)

    @property
    def off_flag(self) -> str:
        """Flag that turns a switch of the layout off."""
        return f"--no-{self.flag.removeprefix('--')}"


def word_of(value: object) -> str:
    """A Python value as the command line has it: switches, and several with bars between."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list | tuple):
        return "|".join(map(word_of, value))
    return str(value)


_OPTIONS: tuple[Option, ...] = (
    Option(
        name="like",
        of="job",
        metavar="RECIPE|FILE",
        sweeps=False,
        help="Start from a tuned recipe (see `planner show recipes`): what it states and no option "
        "says otherwise is taken from it, MODEL and CLUSTER included; the rest is solved. Of a "
        "configuration FILE the job is taken, and the layout is solved.",
    ),
    Option(
        name="framework",
        of="software",
        usual=True,
        help="megatron, deepspeed, torchtitan, accelerate, a format of files, or any [of --emit, "
        "else what the hardware runs; for adapters accelerate].",
    ),
    Option(
        name="profile",
        of="software",
        default="current",
        help="Trait profile of the framework (see `planner show frameworks`) [current].",
    ),
    Option(
        name="settings",
        of="software",
        spelled="set",
        many=True,
        metavar="FACT=CHOICE",
        help="State a fact of the software, as blocks=fused or loss=linear (`planner show "
        "frameworks` lists all), or one trait, traits.SECTION.KEY=VALUE; may be repeated.",
    ),
    Option(
        name="global_batch",
        of="job",
        kind=int,
        allowed=(1, MAX_BATCH),
        unit=" sequences",
        usual=True,
        help="Batch in sequences [about 4M tokens, 8k a GPU at least; of adapters 128k].",
    ),
    Option(name="global_batch_tokens", of="job", help="Batch in tokens, such as 4M."),
    Option(
        name="seq_len",
        of="job",
        kind=int,
        parse=length,
        allowed=(1, MAX_SEQ_LEN),
        usual=True,
        help="Sequence length in tokens, such as 8k [the model's, at most 8k].",
    ),
    Option(name="tokens", of="job", usual=True, help="Tokens of the whole job, such as 15T."),
    Option(
        name="optimizer",
        of="software",
        default="adam",
        help="adam, adam-bf16, adam-8bit, sgd, lion, adafactor, muon, ... [adam].",
    ),
    Option(
        name="train",
        of="software",
        default="full",
        usual=True,
        help="full: all weights; lora: adapters beside frozen weights; qlora: beside weights in 4 "
        "bits [full].",
    ),
    Option(
        name="lora_rank",
        of="software",
        kind=int,
        allowed=(1, MAX_RANK),
        help=f"Rank of the adapters [{USUAL_RANK}].",
    ),
    Option(
        name="lora_targets",
        of="software",
        help=f"Projections with adapters: {', '.join(TARGET_GROUPS)}, or such as q,v; beside them "
        f"embedding and head can be trained whole [{ALL_LINEAR}].",
    ),
    Option(
        name="recompute_modules",
        of="software",
        help="What selective recomputation repeats, such as layernorm,mlp [searched].",
    ),
    Option(
        name="precision",
        of="job",
        usual=True,
        help="bf16, fp16, fp8, fp8_block, mxfp8, fp4, fp32 or tf32 [bf16; fp16 where the "
        "accelerator has none].",
    ),
    Option(
        name="host_memory",
        of="job",
        metavar="SIZE",
        help="Host memory of every node, such as 512GiB [the catalog's].",
    ),
    Option(
        name="margin",
        of="job",
        kind=float,
        help="Percent of HBM to leave free [the error on published runs].",
    ),
    Option(
        name="imbalance",
        of="job",
        kind=float,
        allowed=(0.0, 100.0 * MAX_IMBALANCE),
        unit=" percent",
        help="Of a mixture, percent of tokens beyond the mean that the busiest rank of experts "
        "gets, in memory and in time [20].",
    ),
    Option(
        name="documents",
        of="job",
        metavar="KIND:MEAN",
        help="Documents shorter than --seq-len, of MEAN tokens on average: packed:MEAN (sequences "
        "filled with documents, attention inside each), padded:MEAN (to the longest of a "
        "micro-batch), grouped:MEAN (by length, or without padding). Memory is that of the "
        "longest, --seq-len; time that of the mean [every sequence is one].",
    ),
    Option(
        name="mtp_layers",
        of="job",
        kind=int,
        allowed=(0, MAX_MTP_LAYERS),
        help="Layers of multi-token prediction to train [the model's, where the framework can].",
    ),
    Option(
        name="placement",
        of="layout",
        help="Order of the axes on the cluster, or any [the framework's usual one].",
    ),
    Option(
        name="schedule",
        of="layout",
        many=True,
        help="Pipeline schedules to search, such as 1f1b,zb-v, or all [all].",
    ),
    *(
        Option.of_field(name, known)
        for name, known in STRATEGY_FIELDS.items()
        if name in SEARCHED_FIELDS and name not in ("placement", "schedule")
    ),
    Option(
        name="recompute",
        of="layout",
        usual=True,
        help=f"What layers recompute: {', '.join(RECOMPUTE_WORDS)}; a|b for either or both.",
    ),
    Option(
        name="fix",
        of="narrowing",
        many=True,
        usual=True,
        metavar="NAME=VALUE",
        help="Search only these values: tp=8, pp=2|4, zero=1; repeatable.",
    ),
    Option(
        name="limit",
        of="narrowing",
        many=True,
        metavar="COMPARISON",
        help="Search only where it holds: pp<=8; repeatable.",
    ),
    Option(
        name="where",
        of="narrowing",
        many=True,
        metavar="CONDITION",
        help="The same for a condition such as 'tp*cp <= 8 and zero >= 1'; repeatable.",
    ),
    Option(
        name="allow",
        of="narrowing",
        many=True,
        metavar="FEATURE",
        help="Search what is left out: cross-domain-tp, mixed-layers.",
    ),
    Option(
        name="forbid",
        of="narrowing",
        many=True,
        metavar="FEATURE",
        help="Search without offload, recompute, interleaving, ...",
    ),
    Option(
        name="tuned",
        of="software",
        kind=bool,
        help="State the range of runs that makers of the software tuned, not of others' runs.",
    ),
    Option(
        name="time_limit",
        of="narrowing",
        parse=seconds,
        metavar="SECONDS",
        help="Stop searching then; the gap is reported.",
    ),
    Option(
        name="objective",
        of="goal",
        default="time",
        usual=True,
        help="Rank by time, gpus, cost, energy or headroom [time].",
    ),
    Option(
        name="pareto",
        of="goal",
        sweeps=False,
        help="What the second table trades off: two or three of the objectives.",
    ),
    Option(
        name="frontier",
        of="goal",
        kind=bool,
        sweeps=False,
        help="Show the fastest plan of every number of GPUs.",
    ),
    Option(
        name="deadline",
        of="limits",
        usual=True,
        help="Time the whole job may take: 30d, 2w, 1d12h.",
    ),
    Option(
        name="min_tokens_per_s",
        of="limits",
        help="Rate to reach on all GPUs together, such as 1.2M.",
    ),
    Option(
        name="budget",
        of="limits",
        help="USD the whole job may cost: 500k, 2M, $1.5M.",
    ),
)
OPTIONS: Mapping[str, Option] = {option.name: option for option in _OPTIONS}
# Options that say what ``--fix NAME=VALUE`` says.
FIXED = tuple(name for name, option in OPTIONS.items() if option.of == "layout")
# What a project's planner.toml or a machine's environment may say where nothing is given.
OWN_DEFAULTS = (
    *PLACES,
    *("framework", "profile", "seq_len", "global_batch", "precision", "optimizer"),
)


def options_of(groups: Collection[str]) -> tuple[Option, ...]:
    """Return the options of groups, in the order of the table."""
    return tuple(each for each in OPTIONS.values() if each.of in groups)


def check_names(names: Iterable[str]) -> None:
    """Raise TypeError with the nearest name of each that is no option."""
    wrong = list[str]()
    for name in (each for each in names if each not in OPTIONS):
        option = f"--{name.replace('_', '-')}"
        same = SAME_OPTIONS.get(option, "").strip("-").partition(" ")[0].replace("-", "_")
        meant = f"did you mean {same}?" if same in OPTIONS else elsewhere(option)
        hint = meant or did_you_mean(name, OPTIONS) or f"known are {', '.join(OPTIONS)}"
        wrong.append(f"{name!r}; {hint}")
    if wrong:
        raise TypeError(f"a question has no option {'; nor '.join(wrong)}")
