"""Documents as values with places, whatever they are written in: YAML, JSON, JSON with comments."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib import resources
from pathlib import Path as FilePath
from typing import Any, cast

import yaml

from planner.documents.file import read_text
from planner.documents.nodes import TOO_DEEP, Node, Path, compose, parse_json
from planner.errors import InputError, Problem
from planner.limits import MAX_DEPTH, MAX_VALUES


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A value with its line; of a value under a key, the key's."""

    value: Any
    line: int
    inner: "Mapping[str | int, Entry]" = field(default_factory=dict)  # what a mapping or list holds


@dataclass(frozen=True, kw_only=True)
class Duplicate:
    """A key given twice in one mapping; the last one counts."""

    path: Path
    line: int
    first_line: int


@dataclass(frozen=True, kw_only=True)
class Tree:
    """A text that was read."""

    value: Any  # as ``safe_load`` or json returns it, every key a string; None of an empty text
    entries: Mapping[Path, Entry]  # every value by its path, mappings and sequences too
    duplicates: tuple[Duplicate, ...]
    root: Node | None

    @cached_property
    def members(self) -> Mapping[tuple[str, ...], Entry]:
        """Values by their keys: of the entries, those that are in no list."""
        return {
            cast("tuple[str, ...]", path): entry
            for path, entry in self.entries.items()
            if all(isinstance(name, str) for name in path)
        }


def _entries(entry: Entry, path: Path) -> Iterator[tuple[Path, Entry]]:
    for name, inner in entry.inner.items():
        yield (*path, name), inner
        yield from _entries(inner, (*path, name))


@dataclass(kw_only=True)
class _Walk:
    """Collects values and duplicate keys while the nodes are visited."""

    where: str
    duplicates: list[Duplicate] = field(default_factory=list)
    num_values: int = 0
    num_merging: int = 0  # merge keys at work, one inside the other

    def refuse(self, node: Node, message: str) -> InputError:
        return InputError.single(self.where, f"line {node.line}", message)

    def count(self, node: Node, path: Path) -> None:
        """Note one more value; InputError beyond the limits."""
        self.num_values += 1
        if self.num_values > MAX_VALUES:
            raise self.refuse(node, f"more than {MAX_VALUES:,} values, aliases written out")
        if len(path) + self.num_merging > MAX_DEPTH:
            raise self.refuse(node, f"{TOO_DEEP}, aliases written out")

    def visit(self, node: Node, path: Path, line: int) -> Entry:
        """Return a node's plain value and everything in it."""
        self.count(node, path)
        target = node.resolved
        if target.kind == "mapping":
            inner = self._mapping(target, path)
            members = {name: each.value for name, each in inner.items()}
            return Entry(value=members, line=line, inner=inner)
        if target.kind == "sequence":
            items: dict[str | int, Entry] = {
                at: self.visit(item, (*path, at), item.line) for at, item in enumerate(target.items)
            }
            return Entry(value=[each.value for each in items.values()], line=line, inner=items)
        return Entry(value=target.value, line=line)

    def _mapping(self, node: Node, path: Path) -> dict[str | int, Entry]:
        found: dict[str | int, Entry] = {}
        for key, item in reversed(node.pairs):
            if key.is_merge:
                found |= self._merged(item, path)
        own: dict[str, int] = {}
        for key, item in node.pairs:
            if key.is_merge:
                continue
            if key.resolved.kind != "scalar":
                raise self.refuse(key, "a mapping or a list as key; allowed are plain words")
            name, line = key.resolved.text, key.line
            if name in own:
                self.duplicates.append(
                    Duplicate(path=(*path, name), line=line, first_line=own[name])
                )
            own.setdefault(name, line)
            found.pop(name, None)
            found[name] = self.visit(item, (*path, name), line)
        return found

    def _merged(self, node: Node, path: Path) -> dict[str | int, Entry]:
        """Return the entries that a merge key adds; of several mappings the first one counts."""
        self.num_merging += 1
        target = node.resolved
        found: dict[str | int, Entry] = {}
        for source in reversed(target.items if target.kind == "sequence" else (target,)):
            self.count(node, path)
            if source.resolved.kind != "mapping":
                raise self.refuse(node, "a merge key takes a mapping or a list of mappings")
            found |= self._mapping(source.resolved, path)
        self.num_merging -= 1
        return found


def parsed_yaml(where: str, text: str) -> Tree:
    """Read a text; InputError, with the line, where it is no YAML or beyond the limits."""
    return _tree(where, compose(where, text))


def parsed_json(where: str, text: str) -> Tree:
    """Read a text; InputError, with the line, where it is no JSON or beyond the limits."""
    return _tree(where, parse_json(where, text))


def _tree(where: str, root: Node | None) -> Tree:
    walk = _Walk(where=where)
    top = walk.visit(root, (), root.line) if root else Entry(value=None, line=1)
    return Tree(
        value=top.value,
        entries=dict(_entries(top, ())),
        duplicates=tuple(walk.duplicates),
        root=root,
    )


def parsed_object(where: str, text: str) -> Tree:
    """Read a text of JSON that must be an object of keys; InputError where it is none."""
    found = parsed_json(where, text)
    if not isinstance(found.value, dict):
        raise InputError.single(where, "line 1", "an object in braces is needed")
    return found


def keys_at_top(where: str, text: str, read: Callable[[str, str], Tree] = parsed_json) -> set[str]:
    """The keys of a mapping that a text holds; none where it holds none."""
    try:
        value = read(where, text).value
    except InputError:
        return set()
    return set(value) if isinstance(value, dict) else set()


def load_yaml(path: str | FilePath) -> dict[str, Any]:
    """Return the mapping a file holds; what cannot be read raises ``file::line N: ...``."""
    where = str(path)
    found = parsed_yaml(where, read_text(path))
    for key, _ in found.root.resolved.pairs if found.root else ():
        if not isinstance(key.resolved.value, str):
            message = "keys must be words, quote it if it is one"
            raise InputError.single(where, repr(key.resolved.value), message)
    return _mapping(where, found, "a mapping")


def load_json(path: str | FilePath) -> dict[str, Any]:
    """Return the object in a JSON file; what cannot be read raises ``file::line N: ...``."""
    where = str(path)
    return _mapping(where, parsed_json(where, read_text(path)), "an object")


def _mapping(where: str, found: Tree, word: str) -> dict[str, Any]:
    """The value of a text; InputError where it is no mapping, or one with a key given twice."""
    if not isinstance(found.value, dict):
        raise InputError.single(
            where, "line 1", f"must be {word} of keys, is a {type(found.value).__name__}"
        )
    if found.duplicates:
        raise InputError(
            Problem(
                where=where,
                key=f"line {each.line}",
                message=f"key {str(each.path[-1])[:60]!r} is given twice in one {word.split()[1]}",
            )
            for each in found.duplicates
        )
    return found.value


@cache
def load_own(package: str, *names: str) -> Any:  # noqa: ANN401
    """Return what a YAML file that ships in a package holds, kept: nobody may change it."""
    return load_trusted(FilePath(str(resources.files(package).joinpath(*names))))


@cache
def load_trusted(path: FilePath) -> Any:  # noqa: ANN401
    """Return the same by path; without places of keys it is read three times as fast."""
    return yaml.load(read_text(path), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
