"""The mapping a YAML file holds, or one error: nothing deep or circular is read."""

from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from planner.errors import InputError
from planner.text_file import read_text

MAX_DEPTH = 64
MAX_VALUES = 100_000
"""Values with aliases written out; a bomb of aliases has more."""
MAX_BITS = 1000
"""Of a whole number; a float can hold it."""
Event: TypeAlias = Any
"""An event of PyYAML's; its stubs leave open whether it has marks."""
_Base = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_WRONG = (ValueError, OverflowError, TypeError, KeyError, IndexError, AttributeError)
"""What PyYAML's constructors raise where a scalar is not what its tag says."""


class _Loader(_Base):  # type: ignore[misc,valid-type]
    """Safe loader (C where built) that refuses a key given twice in one mapping."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Build the mapping after looking for repeated keys."""
        seen: set[str] = set()
        for key_node, _ in node.value:
            if isinstance(key_node, yaml.ScalarNode) and key_node.value in seen:
                raise _refused(key_node, f"key {key_node.value!r} is given twice in one mapping")
            seen.add(str(key_node.value))
        return super().construct_mapping(node, deep=deep)  # type: ignore[no-any-return]

    def construct_object(self, node: yaml.Node, deep: bool = False) -> object:
        """Build a value; a scalar that is not what it looks like has a line, too."""
        try:
            value = super().construct_object(node, deep=deep)
        except _WRONG as error:
            raise _refused(node, f"a value cannot be read: {error}") from None
        if isinstance(value, int) and value.bit_length() > MAX_BITS:
            raise _refused(node, "a number of hundreds of digits")
        return value


def load_yaml(path: str | Path) -> dict[str, Any]:
    """Return the mapping a YAML file holds; what cannot be read raises ``file::line N: ...``."""
    where = str(path)
    text = read_text(path)
    try:
        _check_size(yaml.parse(text, Loader=_Base))
        data = yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise InputError.single(where, f"line {line}", f"{error.problem}") from None
    except yaml.YAMLError as error:
        raise InputError.single(where, "line 1", f"not YAML: {error}") from None
    if not isinstance(data, dict):
        kind = type(data).__name__
        raise InputError.single(where, "line 1", f"must be a mapping of keys, is a {kind}")
    wrong = [key for key in data if not isinstance(key, str)]
    if wrong:
        raise InputError.single(where, repr(wrong[0]), "keys must be words, quote it if it is one")
    return data


def _check_size(events: Iterable[Event]) -> None:
    """Refuse what is deep or grows without end, before anything is built (C code recurses)."""
    open_: list[list[Any]] = []
    sizes: dict[Any, int] = {}
    for event in events:
        if isinstance(event, yaml.CollectionStartEvent):
            open_.append([event.anchor, 1])
            if len(open_) > MAX_DEPTH:
                raise _refused(event, f"nested deeper than {MAX_DEPTH} levels")
            continue
        anchor, size = _closed(event, open_, sizes)
        if anchor:
            sizes[anchor] = size
        if open_:
            open_[-1][1] += size
        if size > MAX_VALUES:
            raise _refused(event, f"more than {MAX_VALUES:,} values, aliases written out")


def _closed(event: Event, open_: list[list[Any]], sizes: dict[Any, int]) -> tuple[Any, int]:
    """The anchor of the value that ends with an event, and how many values it stands for."""
    if isinstance(event, yaml.CollectionEndEvent):
        anchor, size = open_.pop()
        return anchor, size
    if isinstance(event, yaml.AliasEvent):
        if any(anchor == event.anchor for anchor, _ in open_):
            raise _refused(event, "refers to itself through an alias")
        return None, sizes.get(event.anchor, 1)
    return (event.anchor, 1) if isinstance(event, yaml.ScalarEvent) else (None, 0)


def _refused(at: Event | yaml.Node, problem: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=at.start_mark)
