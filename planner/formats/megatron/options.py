"""The options of Megatron-LM 0.19.2 by name, their values, and layers of stages in them.

``schema.json`` is written by scripts/megatron_options.py from Megatron-LM's own parser: attributes
of its arguments and configuration, each with the options that set it.
Chunks are listed from embedding to head; chunk c is on stage c mod p. Sources:
megatron/core/transformer/pipeline_parallel_layer_layout.py, transformer_config.py.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby

from planner.documents.schema import Schema, load_schema
from planner.formats.decision import (
    Cannot,
    Decided,
    KeyMapping,
    KeyValue,
    Of,
    To,
    Value,
    Why,
    nothing,
    of_key,
    writes,
)
from planner.formats.format import Located
from planner.formats.settings import Settings, flag, given

VERSION = "0.19.2"
SettingValue = bool | int | float | str | tuple[int | float | str, ...]


@dataclass(frozen=True, kw_only=True)
class Option:
    """An option as the parser knows it."""

    name: str
    kind: str
    """``flag`` sets, ``off`` clears, ``bool`` has a ``--no-`` twin, else int, float or str."""
    nargs: str  # Empty: one value; ``+`` one or more, ``*`` any number, else how many
    choices: tuple[str, ...]
    dest: str  # the attribute it sets
    default: str

    @property
    def takes_values(self) -> bool:
        """True if words after the option belong to it."""
        return self.kind not in ("flag", "off", "bool")


def attributes() -> Mapping[str, Schema]:
    """Attributes of Megatron's arguments and configuration, by name."""
    found: Mapping[str, Schema] = load_schema(__package__)["properties"]
    return found


@cache
def load_options() -> dict[str, Option]:
    """All options by name, with the dashes, in order of the names."""
    found = {
        name: _option(name, attribute, entry)
        for attribute, entry in attributes().items()
        for name in entry.get("options", ())
    }
    return dict(sorted(found.items()))


def _option(name: str, attribute: str, entry: Schema) -> Option:
    is_list = "array" in entry.get("type", ())
    own = entry["items"] if is_list else entry
    kinds = own.get("type", "")
    kind = kinds if isinstance(kinds, str) else kinds[0]
    values = set(entry["options"].values())
    switch = "bool" if len(values) > 1 else "flag" if True in values else "off"
    count = entry.get("maxItems", "+" if "minItems" in entry else "*")
    return Option(
        name=name,
        kind={"boolean": switch, "integer": "int", "number": "float"}.get(kind, "str"),
        nargs=str(count) if is_list else "",
        choices=tuple(str(each) for each in own.get("enum", ()) if each is not None),
        dest=attribute,
        default=str(entry.get("default", "")),
    )


@cache
def options_by_dest() -> dict[str, Option]:
    """Options by the attribute they set; of several the first by name."""
    return {option.dest: option for option in reversed(load_options().values())}


def is_own_script(path: str) -> bool:
    """Return True if a training script is one of Megatron-LM's, or its name is not known."""
    # These add no options of their own.
    own = ("pretrain_gpt.py", "pretrain_hybrid.py", "pretrain_mamba.py", "train_rl.py")
    name = path.rpartition("/")[2]
    return not name.endswith(".py") or name in own


def is_option(word: str) -> bool:
    """Return True if the parser takes a word for an option and not for a value."""
    is_number = re.match(r"-\d+$|-\d*\.\d+$", word)
    return word.startswith("-") and len(word) > 1 and not is_number


def typed(option: Option, words: Sequence[str]) -> SettingValue:
    """The value of an option from its words; ValueError says what is wrong."""
    given = " ".join(words)[:60] or "none"
    if not option.takes_values:
        if words:
            raise ValueError(f"takes no value; given {given}")
        return not option.name.startswith("--no-") if option.kind == "bool" else True
    wanted = {"": "1", "+": "1 or more", "*": "any number"}.get(option.nargs, option.nargs)
    is_right = {"+": bool(words), "*": True}
    if not is_right.get(option.nargs, str(len(words)) == wanted):
        raise ValueError(f"takes {wanted} of {option.kind}; given {given}")
    values = [_one(option, word) for word in words]
    return tuple(values) if option.nargs else values[0]


def _one(option: Option, word: str) -> int | float | str:
    if option.choices and word not in option.choices:
        allowed = ", ".join(option.choices)
        raise ValueError(f"unknown value; given {word[:60]!r}, allowed are {allowed}")
    # More digits are no setting of a training job.
    is_long = option.kind == "int" and sum(map(str.isdigit, word)) > 15
    casts: Mapping[str, Callable[[str], int | float | str]] = {"int": int, "float": float}
    try:
        return casts.get(option.kind, str)("" if is_long else word)
    except ValueError:
        raise ValueError(f"must be a number ({option.kind}); given {word[:60]!r}") from None


TP = "--tensor-model-parallel-size"
PP = "--pipeline-model-parallel-size"
CP = "--context-parallel-size"
LAYERS = "--num-layers"
LAYOUT = "--pipeline-model-parallel-layout"
CHUNK = "--num-layers-per-virtual-pipeline-stage"
CHUNKS = "--num-virtual-stages-per-pipeline-rank"
FIRST = "--decoder-first-pipeline-num-layers"
LAST = "--decoder-last-pipeline-num-layers"
EMBEDDING = "--account-for-embedding-in-pipeline-split"
LOSS = "--account-for-loss-in-pipeline-split"
MTP = "--mtp-num-layers"
SP = "--sequence-parallel"
ETP = "--expert-tensor-parallel-size"
MICRO = "--micro-batch-size"
BATCH = "--global-batch-size"
STEPS = "--step-batch-size-schedule"
# Layers of one part, a letter each, a | between parts of the pipeline: hybrid_layer_allocation.py.
PATTERN = "--hybrid-layer-pattern"
_PATTERNS = (PATTERN, "--hybrid-override-pattern")
# Letters of those that are planned, as in a model's own pattern: attention, Mamba-2, experts, MLP.
PARTS = frozenset("*ME-")
# Key of the first word that a variable hides, which may be any option.
HIDDEN = "hidden"
# Options that cut layers into stages and chunks.
SPLITS = (PATTERN, LAYOUT, CHUNK, CHUNKS, FIRST, LAST, EMBEDDING, LOSS)
# Of a file's stages times chunks: more are no pipeline, and would take long to write out.
MAX_CHUNKS = 10_000


def number(settings: Settings, option: str) -> int | None:
    """A whole number; None where it is not given or not known."""
    value = given(settings, option)
    return value if type(value) is int else None


def whole(settings: Settings, option: str, default: int = 1) -> int:
    """A number from 1 on; the default where it is not one."""
    value = number(settings, option)
    return value if value is not None and value >= 1 else default


def word(settings: Settings, option: str) -> str:
    """A word; Megatron's default where it is not given or not known."""
    value = given(settings, option)
    return load_options()[option].default if value is None else str(value)


def names(settings: Settings, option: str, default: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Several words; the default where they are not given or not known."""
    value = given(settings, option)
    return tuple(map(str, value)) if isinstance(value, tuple) else default


def hybrid_pattern(settings: Settings) -> tuple[list[str], list[str]]:
    """Letters of every part of the pipeline, and of every layer that predicts a further token."""
    new, old = _PATTERNS
    text = word(settings, new) or word(settings, old)
    main, *further = text.split("/")
    return main.split("|"), further


def of_pattern(settings: Settings) -> dict[str, Located]:
    """The numbers of layers that a pattern says, as it replaces others (arguments.py)."""
    segments, further = hybrid_pattern(settings)
    said = {
        LAYERS: len("".join(segments)),
        MTP: len(further),
    }
    option = next((each for each in reversed(_PATTERNS) if given(settings, each)), None)
    return {
        name: replace(settings[option], value=count)
        for name, count in said.items()
        if option and count
    }


def chunks_in(settings: Settings) -> tuple[int, ...] | None:
    """Layers of every chunk; None where they do not divide or are not known."""
    pp, num_layers = whole(settings, PP), whole(settings, LAYERS, 0)
    if pp > MAX_CHUNKS or num_layers > MAX_CHUNKS:
        return None
    segments, _ = hybrid_pattern(settings)
    if segments[1:]:
        return None if len(segments) % pp else tuple(map(len, segments))
    if layout := word(settings, LAYOUT):
        stages = parts_in(layout)
        return chunks_of(stages) if stages and len(stages) % pp == 0 else None
    size, layers = number(settings, CHUNK), num_layers + sum(accounted(settings))
    # Layers may not divide into chunks of the size given.
    if size is not None and (size < 1 or layers % (pp * size)):
        return None
    vpp = whole(settings, CHUNKS) if size is None else layers // (pp * size)
    if not num_layers or pp * vpp > MAX_CHUNKS:
        return None
    first, last = number(settings, FIRST), number(settings, LAST)
    if first is not None or last is not None:
        return given_ends(num_layers, pp, vpp, first=first, last=last)
    embedding, loss = accounted(settings)
    return even_chunks(num_layers, pp, vpp, embedding=embedding, loss=loss)


def batches_in(settings: Settings) -> list[tuple[int, int]]:
    """Batches of a schedule, each with the tokens it begins at; ValueError says what is wrong.

    ``0:256 1B:512``: _parse_schedule in megatron/core/num_microbatches_calculator.py.
    """
    found = []
    for entry in word(settings, STEPS).replace(",", " ").split()[:MAX_CHUNKS]:
        parts = re.fullmatch(r"(\d{1,15})([KMBT]?):(\d{1,9})", entry.upper())
        if parts is None:
            raise ValueError(f"must be TOKENS:BATCH, as 0:256 1B:512; given {entry[:60]!r}")
        tokens = int(parts[1]) * 1000 ** (" KMBT".index(parts[2] or " "))
        found.append((tokens, int(parts[3])))
    return sorted(found)


def last_batch(settings: Settings) -> int | None:
    """The batch that a schedule ends with; None where there is none that can be read."""
    try:
        return batches_in(settings)[-1][1]
    except (ValueError, IndexError):
        return None


def accounted(settings: Settings) -> tuple[bool, bool]:
    """Return for embedding and for loss whether it counts as a layer."""
    return flag(settings, EMBEDDING), flag(settings, LOSS)


# Characters of a layout whose repetitions are written out.
MAX_LAYOUT = 200_000
LETTERS = {"E": "embedding", "L": "loss", "t": "decoder", "m": "mtp"}


def layout_text(chunks: Sequence[int], mtp_layers: int = 0) -> str:
    """Layers per chunk as Megatron takes them; those of MTP stand in front of the loss."""
    parts = [f"t*{n}" if n > 1 else "t" * n for n in chunks]
    parts[0] = f"E{parts[0]}"
    parts[-1] += "m" * mtp_layers + "L"
    return "|".join(parts)


def parse_layout(text: str) -> list[str]:
    """The stages of a layout with repetitions written out; ValueError says what is wrong."""
    text = text.replace(",", "")
    for repeated in (r"\(([^)]+)\)\*(\d+)", r"(.)\*(\d+)"):
        size = len(text)
        for found in re.finditer(repeated, text):
            repeats = int(found[2]) if len(found[2]) < 8 else MAX_LAYOUT
            size += len(found[1]) * repeats
        if size > MAX_LAYOUT:
            raise ValueError(f"longer than {MAX_LAYOUT} layers")
        text = re.sub(repeated, lambda found: found[1] * int(found[2]), text)
    unknown = sorted(set(text) - {*LETTERS, "|"})
    if unknown:
        allowed = ", ".join(f"{letter} ({name})" for letter, name in LETTERS.items())
        raise ValueError(f"unknown layers {''.join(unknown)[:20]!r}; allowed are {allowed} and |")
    return text.split("|")


def layout_problem(stages: Sequence[str], num_layers: int | None) -> str | None:
    """Return what Megatron refuses in the order and number of layers; None if nothing."""
    flat = "".join(stages)
    if not flat.startswith("E") or flat.count("E") != 1:
        return "the first layer must be the embedding, E, and the only one"
    if not flat.endswith("L") or flat.count("L") != 1:
        return "the last layer must be the loss, L, and the only one"
    if num_layers is not None and flat.count("t") != num_layers:
        return f"holds {flat.count('t')} layers; --num-layers is {num_layers}"
    return None


def parts_in(text: str) -> list[str]:
    """The stages of a layout; none of one that cannot be read."""
    try:
        return parse_layout(text)
    except ValueError:
        return []


def chunks_of(stages: Sequence[str]) -> tuple[int, ...]:
    """Transformer layers of every chunk of a layout."""
    return tuple(stage.count("t") for stage in stages)


def even_chunks(
    num_layers: int, pp: int, vpp: int, *, embedding: bool = False, loss: bool = False
) -> tuple[int, ...] | None:
    """Equal chunks, of which embedding and loss may count as a layer each; None: none are."""
    size, rest = divmod(num_layers + embedding + loss, pp * vpp)
    chunks = [size] * (pp * vpp)
    chunks[0] -= embedding
    chunks[-1] -= loss
    return None if rest or min(chunks) < 0 else tuple(chunks)


def given_ends(
    num_layers: int, pp: int, vpp: int, *, first: int | None, last: int | None
) -> tuple[int, ...] | None:
    """Chunks where the first or the last stage has a number of layers of its own."""
    heads = [first] if first is not None else []
    tails = [last] if last is not None else []
    middle = pp - len(heads) - len(tails)
    rest = num_layers - sum(heads) - sum(tails)
    if min(middle, rest) < 0 or bool(middle) != bool(rest):
        return None
    each, left = divmod(rest, max(middle, 1))
    stages = [*heads, *[each] * middle, *tails]
    if left or any(layers % vpp for layers in stages):
        return None
    return tuple(layers // vpp for layers in stages) * vpp


def per_stage(chunks: Sequence[int], pp: int) -> tuple[int, ...]:
    """Layers of every stage."""
    return tuple(sum(chunks[stage::pp]) for stage in range(pp))


def uniform_block(chunks: Sequence[int], wanted: Sequence[int]) -> int | None:
    """Layers per chunk that block recomputation must repeat to reach a number on every stage."""
    for most in range(1, max(chunks, default=0) + 1):
        if per_stage([min(n, most) for n in chunks], len(wanted)) == tuple(wanted):
            return most
    return None


def pattern_text(layers: Sequence[int]) -> str:
    """A list of 0 and 1 as the product form that ``--moe-layer-freq`` takes."""
    runs = (f"[{kind}]*{len(list(run))}" for kind, run in groupby(layers))
    return f"({'+'.join(runs)})"


def pattern_layers(text: str) -> list[int]:
    """The list of 0 and 1 that such a text says, repeated as a whole or not."""
    whole_list = re.fullmatch(r"\((.*)\)\*(\d{1,3})", text.replace(" ", ""))
    inner, times = whole_list.groups() if whole_list else (text.replace(" ", ""), "1")
    layers = list[int]()
    for kinds, count in re.findall(r"\[([01](?:,[01])*)\](?:\*(\d{1,3}))?", inner[:MAX_CHUNKS]):
        layers += [int(kind) for kind in kinds.split(",")] * int(count or 1)
    return layers[:MAX_CHUNKS] * int(times)


def every_nth(num_layers: int, step: int) -> list[int]:
    """0 for every layer that the step divides, else 1."""
    return [int(number % step > 0) for number in range(1, num_layers + 1)]


def choices(values: Mapping[str, tuple[object, str]]) -> Iterator[KeyValue]:
    """Options with their values and why: None and False say nothing, True sets a flag."""
    for option, (value, why) in values.items():
        if value is not None and value is not False:
            _, *words = words_of(option, value)
            yield KeyValue(key=option, value=typed(load_options()[option], words), why=why)


def options(values: Mapping[str, tuple[Value, Why]]) -> To:
    """Options by expressions for their values, and why."""
    to = writes(values)
    return lambda context, strategy: choices(
        {line.key: (line.value, line.why) for line in to(context, strategy)}
    )


def alike(values: Mapping[str, object], why: str = "") -> Iterator[KeyValue]:
    """Options with their values, all for one reason."""
    return choices({option: (value, why) for option, value in values.items()})


def words_of(option: str, value: object) -> list[str]:
    """An option and its value as words of a command."""
    if value is True:
        return [option]
    values = value if isinstance(value, tuple) else (value,)
    words = (f"{each:g}" if isinstance(each, float) else str(each) for each in values)
    return [option, *words]


def row(
    named: str,
    options: str,
    to: To,
    of: Of,
    cannot: Cannot = nothing,
) -> KeyMapping:
    """The row of decisions that share several options."""
    return KeyMapping(
        names=tuple(named.split()),
        keys=tuple(options.split()),
        to=to,
        of=of,
        cannot=cannot,
    )


def degree(name: str, option: str, why: str, cannot: Cannot = nothing) -> KeyMapping:
    """A number of the strategy that an option states, where it is above 1."""
    return of_key(name, option, f"{name} if {name} > 1 else None", why, cannot=cannot)


def with_open(own: KeyMapping) -> KeyMapping:
    """A row; an option of it whose value nobody knows says something else than any plan."""

    def decides(settings: Settings) -> Decided:
        yield from own.of(settings)
        there = (key for key in own.keys if key in settings)
        yield from ((key, key, None) for key in there if given(settings, key) is None)

    return replace(own, of=decides)
