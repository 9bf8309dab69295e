"""Model, GPUs and batch that a file states, checked against its ranges and the job.

What contradicts itself or the job becomes a finding at its line, as severe as its rule: what rules
say and where they come from is here too.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import contains
from typing import Any, TypeVar

from planner.documents.tree import load_own
from planner.formats import registry as formats
from planner.formats.format import ALL, Finding, Located, ParsedConfig, PerChunk, Severity
from planner.limits import MAX_BATCH, MAX_GPUS, brief
from planner.spec.model import ModelSpec
from planner.spec.strategy import MODEL_PARALLEL_DEGREES, FieldSpec, gpus_of_replica

LEGALITY = "legality"
Value = TypeVar("Value")


@dataclass(frozen=True)
class RuleInfo:
    """A rule as reports describe it."""

    name: str
    description: str
    severity: Severity = "error"
    source: str = ""  # file of the framework that enforces it, where it is one of a framework


# Rules that belong to no format: what must hold.
OWN = {
    name: RuleInfo(name, description, severity)
    for severity, rules in load_own(__package__, "rules.yaml").items()
    for name, description in rules.items()
}
READING = {
    "unknown_key": "Every key is one that the framework knows.",
    "bad_value": "Every value is of the kind and in the range of its key.",
    "duplicate_key": "No key is given twice.",
}


def describe(name: str) -> RuleInfo:
    """Return what reports state about a rule; for an unknown one, the words of its name."""
    if name in OWN:
        return OWN[name]
    family, _, short = name.partition(".")
    words = (short or name).replace("_", " ").strip()
    words = words[:1].upper() + words[1:]
    if family == LEGALITY:
        # The rules of the search come with all that they ask of costs: only reports need them.
        from planner.search.space.legality import RULES

        messages = {rule.name: " ".join(rule.message.split()) for rule in RULES}
        return RuleInfo(name, messages.get(short, words))
    if family in formats.format_names():
        for rule in formats.load_format(family).rules:
            if rule.name == short:
                return RuleInfo(name, words, rule.severity, rule.source)
    return RuleInfo(name, READING.get(short, words))


NOWHERE = Located(key="")
# Fields of the model by the decisions that state them.
SIZES = {
    "model.num_layers": "num_layers",
    "model.hidden_size": "hidden_size",
    "model.num_heads": "num_heads",
    "model.num_kv_heads": "num_kv_heads",
    "model.ffn_size": "ffn_size",
    "model.vocab_size": "vocab_size",
    "model.num_experts": "moe.num_experts",
}
# Frameworks pad a vocabulary to a multiple of 128 times tensor parallelism.
VOCAB_MULTIPLE, MOST_TP = 128, 64


@dataclass(frozen=True, kw_only=True)
class Locations:
    """Places where a file states its decisions, by the names of DECISIONS."""

    path: str
    of: dict[str, Located]

    def finding(
        self, rule: str, message: str, *decisions: str, severity: Severity | None = None
    ) -> Finding:
        """A finding at the first of the decisions that the file states."""
        known = [self.of[name] for name in decisions if name in self.of]
        # A default of the framework has no line: a decision that the file spells out comes first.
        known.sort(key=lambda place: not place.line)
        place = known[0] if known else NOWHERE
        return self.at(place, rule, message, severity)

    def at(
        self, place: Located, rule: str, message: str, severity: Severity | None = None
    ) -> Finding:
        """A finding at a place of the file, as severe as its rule where nothing else is said."""
        return Finding(
            rule=rule,
            severity=severity or (OWN[rule].severity if rule in OWN else "error"),
            message=message,
            path=self.path,
            key=place.key,
            line=place.line,
        )


class Values:
    """Reads decisions one by one; each is None where it is not given or wrong."""

    def __init__(self, reading: ParsedConfig) -> None:
        self.reading = reading
        stated = {**reading.left_open, **reading.decisions}
        self.places = Locations(path=reading.path, of=stated)
        self.findings: list[Finding] = []
        self.assumed: list[str] = []  # what neither file nor job say, in words

    def add(self, rule: str, message: str, *decisions: str) -> None:
        """Note a finding at the first of the decisions that the file states."""
        self.findings.append(self.places.finding(rule, message, *decisions))

    def given(self, name: str) -> Any:  # noqa: ANN401 - whatever the file holds
        """The value of a decision as the file has it."""
        value = self.reading.decisions.get(name)
        return None if value is None else value.value

    def _checked(
        self, name: str, allows: Callable[[Value], bool], allowed: str, rule: str = "job.value"
    ) -> Value | None:
        value: Value | None = self.given(name)
        if value is None or allows(value):
            return value
        self.add(rule, f"{name} must be {allowed}; given {brief(value)}", name)
        return None

    def whole(self, name: str, *, least: int = 1, most: int = MAX_GPUS) -> int | None:
        """A whole number in its range."""
        allows = partial(_is_whole, least=least, most=most)
        return self._checked(name, allows, f"a whole number from {least} to {most:,}")

    def word(self, name: str, allowed: Sequence[str], rule: str = "job.value") -> str | None:
        """One of the words allowed."""
        return self._checked(name, partial(contains, allowed), f"one of {', '.join(allowed)}", rule)

    def of(self, name: str, decision: FieldSpec, usual: int | str) -> int | str:
        """Return the file's value of a field of strategies; the usual value if missing or wrong."""
        found: int | str | None
        if decision.words:
            found = self.word(name, decision.words)
        elif decision.is_flag:
            found = self._checked(name, lambda value: isinstance(value, bool), "true or false")
        else:
            found = self.whole(name, least=decision.least, most=decision.most)
        return usual if found is None else found

    def words(self, name: str) -> tuple[str, ...] | None:
        """A list of words."""

        def are_words(value: Any) -> bool:  # noqa: ANN401 - whatever the file holds
            return isinstance(value, list | tuple) and all(isinstance(one, str) for one in value)

        value: Any = self._checked(name, are_words, "a list of words")
        return None if value is None else tuple(value)

    def counts(
        self, name: str, layers: tuple[int, ...] | None = None, vpp: int = 1
    ) -> tuple[int, ...] | None:
        """A number per stage, ``all`` standing for ``layers``.

        So many of every chunk are ``vpp`` times as many of the stage, as far as it holds them.
        """
        value = self.given(name)
        if layers is not None and value == ALL:
            return layers
        if layers is not None and isinstance(value, PerChunk):
            return tuple(min(vpp * value.number, held) for held in layers)

        def are_counts(value: Any) -> bool:  # noqa: ANN401 - whatever the file holds
            is_list = isinstance(value, list | tuple) and 0 < len(value) <= MAX_GPUS
            return is_list and all(_is_whole(one, 0, MAX_GPUS) for one in value)

        value = self._checked(name, are_counts, "one whole number per stage")
        return None if value is None else tuple(value)


def _is_whole(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


@dataclass(frozen=True, kw_only=True)
class Gpus:
    """Division of the GPUs over the axes."""

    num_gpus: int
    degrees: Mapping[str, int]  # MODEL_PARALLEL_DEGREES
    dp: int | None  # None where those do not divide the GPUs


def read_gpus(values: Values, *, asked: int | None, of_cluster: int) -> Gpus:
    """GPUs and degrees: from the file, else ``asked`` (the job's), else the whole cluster."""
    degrees = {name: values.whole(name) or 1 for name in MODEL_PARALLEL_DEGREES}
    inner = gpus_of_replica(degrees)
    names = " x ".join(degrees)
    given = " x ".join(map(str, degrees.values()))
    dp, stated = values.whole("dp"), values.whole("num_gpus")
    product = dp and dp * inner
    if product and stated and product != stated:
        text = f"dp x {names} must be the {stated} GPUs of the file"
        values.add("gpus.divide", f"{text}; given {dp} x {given} = {product}", "dp", "num_gpus")
    named = stated or product
    if asked and named and asked != named:
        text = f"the file is for {named} GPUs; the job has {asked}"
        values.add("job.gpus", text, "num_gpus", "dp", *MODEL_PARALLEL_DEGREES)
    num_gpus = named or asked or of_cluster
    rest, left = divmod(num_gpus, inner)
    if left:
        text = f"{names} must divide the {num_gpus} GPUs; given {given} = {inner}"
        largest_first = sorted(degrees, key=lambda name: -degrees[name])
        values.add("gpus.divide", text, *largest_first, "num_gpus")
    is_whole = not left and dp in (None, rest)
    return Gpus(num_gpus=num_gpus, degrees=degrees, dp=rest if is_whole else None)


def read_batch(
    values: Values,
    dp: int,
    *,
    asked: int | None,
) -> dict[str, int] | None:
    """Micro-batch, their number and the batch, what is open filled in; None where none divides."""
    micro, number = values.whole("micro_batch"), values.whole("num_micro_batches")
    stated = values.whole("global_batch", most=MAX_BATCH)
    names = ("global_batch", "num_micro_batches", "micro_batch", "dp", "num_gpus")
    if asked is not None and stated not in (None, asked):
        text = f"the file's global batch is {stated} sequences; the job's is {asked}"
        values.add("job.global_batch", text, "global_batch")
    total = stated or asked
    if not micro and not number:
        values.assumed.append("micro-batch 1")
    if not total and not number:
        values.assumed.append("one micro-batch per iteration")
    if total and not (micro and number):
        factor = dp * (number or micro or 1)
        rest, left = divmod(total, factor)
        if left:
            name = "micro-batches" if number else "micro-batch"
            text = f"dp x {name} must divide the global batch of {total}; given {dp} x "
            values.add("batch.arithmetic", f"{text}{factor // dp} = {factor}", *names)
            return None
        micro, number = (rest, number) if number else (micro, rest)
    micro, number = micro or 1, number or 1
    made = dp * micro * number
    if total not in (None, made):
        rule = "batch.arithmetic" if stated else "job.global_batch"
        text = (
            f"dp x micro-batch x micro-batches must be the global batch of {total}; "
            f"given {dp} x {micro} x {number} = {made}"
        )
        values.add(rule, text, *names)
        return None
    return {"micro_batch": micro, "num_micro_batches": number, "global_batch": made}


def known_of(
    reading: ParsedConfig, shape: Mapping[str, Any], gpus: Gpus, batch: Mapping[str, int] | None
) -> dict[str, Any]:
    """Decisions by name: the model's shape, what follows and, before both, what the file says."""
    follows = {**gpus.degrees, "num_gpus": gpus.num_gpus, **(batch or {})}
    follows |= {} if gpus.dp is None else {"dp": gpus.dp}
    stated = {name: each.value for name, each in reading.decisions.items()}
    return {**shape, **follows} | {name: each for name, each in stated.items() if each is not None}


def shape_of(model: ModelSpec) -> dict[str, int]:
    """The sizes that a file may state, by the names of DECISIONS."""
    return {decision: _part(model, name) or 0 for decision, name in SIZES.items()}


def check_model(values: Values, model: ModelSpec) -> None:
    """Note what is not the model's; what one word of the file chooses is one finding."""
    own = values.reading.own_model
    wrong: dict[tuple[str, int], list[str]] = {}
    for place, text in model_mismatches(values, model):
        wrong.setdefault((place.key, place.line), []).append(text)
    for (key, line), (text, *others) in wrong.items():
        more = f" (and {len(others)} other sizes)" if others else ""
        place = Located(key=key, line=line)
        values.findings.append(values.places.at(place, "job.model", text + more))
    if own is not None and own.spec is model:
        values.assumed += own.assumed


def model_mismatches(values: Values, model: ModelSpec) -> Iterator[tuple[Located, str]]:
    """Yield what a file states of its model that differs from the model, each with its place."""
    own = values.reading.own_model
    if own is not None and "" in own.places:
        # What tells models apart where a file names one as a whole.
        sizes = ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "ffn_size", "head_dim")
        named = [name for name in sizes if _part(own.spec, name) != _part(model, name)]
        if named:
            shown = ", ".join(f"{_words(name)} {_part(own.spec, name)}" for name in named)
            yield own.places[""], f"names {own.spec.name} ({shown}); checked for {model.name}"
        return
    for name, place, given in _stated_of_model(values):
        wanted = _part(model, name)
        if name == "biases.mlp" and model.moe:  # files say one word of both
            wanted = model.moe.expert_bias
        if given != wanted and not _is_as_good(values, model, name, given):
            text = f"{_words(name)} of {model.name} is {_shown(wanted)}; given {_shown(given)}"
            yield place, text


def _stated_of_model(values: Values) -> Iterator[tuple[str, Located, Any]]:
    """Fields of the model that the file says, with place and value; sizes where it says no more."""
    own = values.reading.own_model
    if own is not None:
        yield from ((name, place, _part(own.spec, name)) for name, place in own.places.items())
        return
    for decision, name in SIZES.items():
        size = values.whole(decision, least=0, most=10**9)
        if size is not None:
            yield name, values.places.of[decision], size


def _is_as_good(values: Values, model: ModelSpec, name: str, given: Any) -> bool:  # noqa: ANN401
    """Return True if another value still builds the same model."""
    moe, is_described = model.moe, values.reading.own_model is not None
    if name == "vocab_size":
        tp = values.given("tp")
        stated_tp = tp if isinstance(tp, int) and tp > 0 else 1
        degree = MOST_TP if is_described else stated_tp
        return bool(model.vocab_size < given < model.vocab_size + VOCAB_MULTIPLE * degree)
    if name == "ffn_size" and moe:
        return bool(given == moe.expert_ffn_size)
    if name == "moe.num_experts":  # one expert is none
        return bool(given <= 1 and (moe is None or moe.num_experts <= 1))
    return name in ("qk_norm", "head_dim") and model.mla is not None


def _part(model: ModelSpec, name: str) -> Any:  # noqa: ANN401 - of any field
    """The value of a field, of a part such as ``moe.top_k``; None of a part that it lacks."""
    part: Any = model
    for each in name.split("."):
        part = getattr(part, each, None)
    return part


def _words(name: str) -> str:
    return name.rpartition(".")[2].replace("_", " ")


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else str(value)
