"""Search space, or the one layout, that options leave, less what software does not support."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from planner.cost.context import Context
from planner.errors import ExpressError
from planner.formats.format import Format
from planner.formats.registry import format_for, load_format, written_names
from planner.frameworks.registry import load_traits
from planner.limits import brief
from planner.notes import NoteKind, Problems
from planner.query.options import FIXED, OPTIONS, word_of
from planner.query.query import Query
from planner.query.software import supporting
from planner.search.space.count import unsupported_value
from planner.search.space.narrow import Narrowing, read_narrowing
from planner.search.space.space import EVERYTHING
from planner.spec.strategy import STRATEGY_FIELDS


def fixed(query: Query) -> tuple[str, ...]:
    """Return what options of the layout fix, as ``--fix`` says it, before what that says."""
    said = {name: query.get(name) for name in FIXED}
    words = {name: word_of(value) for name, value in said.items() if value not in (None, ())}
    own = (f"{name}={word}" for name, word in words.items() if word not in ("all", "any"))
    return (*(text.replace(",", "|") for text in own), *query.get("fix"))


def narrowing_of(query: Query, problems: Problems) -> Narrowing:
    """Return what the options leave to search."""
    read = Problems()
    narrowing = read.read(
        lambda: read_narrowing(
            fix=fixed(query),
            limit=query.get("limit"),
            where=query.get("where"),
            allow=query.get("allow"),
            forbid=query.get("forbid"),
        )
    )
    for each in read.found:  # of a value that an option of its own gives, by that option
        name = each.message.partition(" ")[0]
        is_own = name in FIXED and name in query.given
        problems.found.append(replace(each, key=OPTIONS[name].flag if is_own else each.key))
    return narrowing or EVERYTHING


def expressible(
    contexts: Sequence[Context], fmt: Format | None, problems: Problems
) -> tuple[Context, ...]:
    """Return contexts in the space of ``fmt``, or of the frameworks' own formats.

    Frameworks whose format has no words for model, precision, optimizer or profile are left out
    where others have. Raises ExpressError where files are asked for and there are no words.
    """
    if fmt is not None:
        contexts = [fmt.narrowed(context) for context in contexts]
    several, kept = len(contexts) > 1, list[Context]()
    left = list[tuple[str, Format, list[str]]]()
    for context in contexts:
        written = fmt or format_for(context)
        if reasons := _unsaid(context, written, is_one_of_several=several):
            left.append((context.traits.name, written, reasons))
        else:
            kept.append(context)
    if not kept and fmt is not None:
        lines = [f"  {name}: {reason}" for name, _, reasons in left for reason in reasons]
        lines += [f"  {text}" for text in _starting(contexts[0])]
        raise ExpressError("\n".join([f"{fmt.title} cannot express any plan of it:", *lines]))
    for name, written, reasons in left:
        text = f"left out, not in {written.title}: {name} ({'; '.join(reasons)})"
        if not kept:
            said = "; ".join([*reasons, *_starting(contexts[0])])
            text = f"--emit has no files for {name} here, code of your own is needed: {said}"
        problems.note(NoteKind.given, text, "framework")
    return tuple(kept or contexts)


def _starting(context: Context) -> Iterator[str]:
    """Name the formats whose files start what the framework's own cannot say."""
    found = []
    for written in map(load_format, written_names()):
        other = replace(context, traits=load_traits(written.framework))
        runs_there = context.cluster.accelerator.vendor in other.traits.support.vendors
        if runs_there and not any(written.refused(other)):
            found.append(written.name)
    if found:
        yield f"files of other software: --emit {', '.join(found)}"


def _unsaid(context: Context, fmt: Format, *, is_one_of_several: bool) -> list[str]:
    """Return the reasons why no plan of a context can be written, whatever its layout."""
    found = list(fmt.refused(context))
    if is_one_of_several and not fmt.carries(context.traits.name):
        found.append("framework of other files")
    return found


def with_values(
    contexts: Sequence[Context], narrowing: Narrowing, problems: Problems
) -> tuple[Context, ...]:
    """Return the contexts that offer the values fixed, the others noted; InputError where none."""
    found = {each.traits.name: unsupported_value(each, narrowing) for each in contexts}
    lacking = {name: why for name, (_, why) in found.items()}
    option, _, given = next((text for text, _ in found.values() if text), "").partition(" ")
    kept = supporting(contexts, lacking, option, given, problems)
    problems.finish()
    return kept


def one_layout(query: Query, problems: Problems) -> dict[str, Any]:
    """Return the values that the options of the layout give, by name; one of each."""
    found: dict[str, Any] = {}
    for name in FIXED:
        said = query.get(name)
        if said is None or said == ():
            continue
        value = ",".join(said) if isinstance(said, tuple) else said
        if name in STRATEGY_FIELDS and STRATEGY_FIELDS[name].value_type is int:
            value = problems.parsed(OPTIONS[name].flag, value, parse_whole)
        if value is not None:
            found[name] = value
    return found


def parse_whole(text: str, allowed: str = "one whole number here") -> int:
    """Read a whole number; ValueError says what is allowed."""
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"must be {allowed}; given {brief(text)}") from None


def parse_layers(text: str) -> tuple[int, ...]:
    """Read layers of every stage from ``10,11,11,10``."""
    allowed = "one whole number per stage, such as 10,11,11,10"
    return tuple(map(partial(parse_whole, allowed=allowed), text.split(",")))


def parse_offloaded_layers(text: str) -> int | Literal["all"]:
    """Read layers per stage whose activations are offloaded, from ``12`` or ``all``."""
    allowed = "all, or a whole number of layers per stage"
    return "all" if text == "all" else parse_whole(text, allowed)
