"""What a front end trains, in how many bits, and what of it plans do not price."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from planner.formats.adapters import LIGER, SUFFIX
from planner.formats.format import Located
from planner.formats.front_ends.tools import FrontEnd
from planner.formats.settings import Settings, as_flag, as_whole, given
from planner.spec.training import FULL, MAX_RANK, TARGETS, Mode, Target, Training, read_targets
from planner.spec.traits import Setting

# Of the name of a model whose weights are quantised already.
_QUANTISED = re.compile(r"(?i)\b(gptq|awq|aqlm|int4|int8|[48]bit|bnb|mxfp4|hqq|eetq)\b|-fp8")


def is_one_of(value: object, wanted: list[Any]) -> bool:
    """Whether a value is one of those of a table, flags by any word for them."""
    flags = [each for each in wanted if isinstance(each, bool)]
    return value in wanted or (as_flag(value) in flags and as_flag(value) is not None)


def _any_of(settings: Settings, table: Mapping[str, list[Any]]) -> bool:
    return any(is_one_of(given(settings, key), values) for key, values in table.items())


def unpriced(tool: FrontEnd, settings: Settings) -> str:
    """Why plans say nothing of the memory and time of what a file starts; empty where they do."""
    return next(_reasons(tool, settings), "")


def _reasons(tool: FrontEnd, settings: Settings) -> Iterator[str]:
    modes = tool.training["modes"]
    for entry in tool.unpriced:
        value = given(settings, entry["key"])
        if _is_unpriced(entry, value):
            yield f"{settings[entry['key']].key} {str(value)[:60]}: {entry['why']}"
    for key in tool.training["beyond"]:
        if given(settings, key) and as_flag(given(settings, key)) is not False:
            yield f"{settings[key].key}: more than adapters of one rank is trained"
    mode = _stated_mode(tool, settings)
    if mode is not None and not modes.get(str(mode.value)):
        allowed = ", ".join(name for name, known in modes.items() if known)
        yield f"{mode.key} {mode.value}: plans price {allowed}"
    for key in tool.model:
        name = given(settings, key)
        if isinstance(name, str) and _QUANTISED.search(name):
            yield f"{settings[key].key} {name[-60:]}: its weights are quantised already"


def _is_unpriced(entry: Mapping[str, Any], value: object) -> bool:
    """Whether a value is one of ``values``, none of ``other_than``, or, without them, given."""
    is_given = value not in (None, "") and as_flag(value) is not False
    if "values" in entry:
        return value not in (None, "") and is_one_of(value, entry["values"])
    if "other_than" in entry:
        return is_given and not is_one_of(value, entry["other_than"])
    return is_given and value not in ([], {})


def _stated_mode(tool: FrontEnd, settings: Settings) -> Located | None:
    names = (tool.training["key"], *tool.training.get("keys", ()))
    return next((settings[name] for name in names if given(settings, name) not in (None, "")), None)


def training_of(tool: FrontEnd, settings: Settings) -> tuple[Training, tuple[str, ...]]:
    """What is trained, and what of it nobody says, in words."""
    stated, table, said = _stated_mode(tool, settings), tool.training, list[str]()
    word = table["usual"] if stated is None else table["modes"].get(str(stated.value))
    if word in (None, "full"):
        return FULL, ()
    mode: Mode = "qlora" if _any_of(settings, table["in_4_bits"]) else word
    rank = as_whole(given(settings, table["rank"]["key"]))
    if rank is None or not 1 <= rank <= MAX_RANK:
        rank = int(table["rank"]["usual"])
        said.append(f"adapters of rank {rank}")
    targets = _targets(tool, settings)
    if not targets:
        usual = table["targets"].get("usual")
        targets = tuple(usual) if usual else TARGETS
        said.append("adapters on " + (", ".join(usual) if usual else "all linear layers"))
    return Training(mode=mode, rank=rank, targets=targets), tuple(said)


def _targets(tool: FrontEnd, settings: Settings) -> tuple[Target, ...]:
    """The projections that a file names, empty where it names none that plans know."""
    table = tool.training["targets"]
    for value in (given(settings, key) for key in table["keys"]):
        names = value.split(",") if isinstance(value, str) else value
        names = names if isinstance(names, list) else []
        is_all = value is not None and is_one_of(value, table["all"])
        if is_all or any(is_one_of(each, table["all"]) for each in names):
            return TARGETS
        short = [str(name).strip().rpartition(".")[2].removesuffix(SUFFIX) for name in names]
        known = [name for name in short if name in TARGETS]
        if known:
            return read_targets(",".join(known))
    return ()


def holds_16_bits(tool: FrontEnd, settings: Settings) -> bool:
    """Whether the weights that are trained are held in 16 bits."""
    stated = {key: values for key, values in tool.in_16_bits.items() if key != "usual"}
    return bool(tool.in_16_bits.get("usual", False)) != _any_of(settings, stated)


def traits_of(tool: FrontEnd, settings: Settings) -> tuple[Setting, ...]:
    """Traits that a file states: the loss in chunks."""
    plugins = given(settings, "plugins")
    has_plugin = isinstance(plugins, list) and any(each in tool.liger_plugins for each in plugins)
    return LIGER if has_plugin or _any_of(settings, tool.liger) else ()
