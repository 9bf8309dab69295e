"""YAML with the place of every key and value, by the nodes that PyYAML's events make.

The frameworks read their files with PyYAML's ``safe_load``: what ``no``, ``1e-3`` and merge keys
mean there, they mean here. Nothing is constructed but plain values.
"""

import pickle
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import resources
from pathlib import Path as FilePath
from typing import Any, Literal, TypeAlias

import yaml

from planner.documents.file import read_text
from planner.errors import InputError, Problem
from planner.limits import MAX_DEPTH, MAX_DIGITS, MAX_VALUES

Path = tuple[str | int, ...]
BREAK = re.compile(r"\r\n|[\n\r\x85\u2028\u2029]")
Event: TypeAlias = Any
"""An event of PyYAML's; its stubs leave open whether it has marks."""
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_WRONG = (ValueError, OverflowError, TypeError, KeyError, IndexError, AttributeError)
"""What PyYAML's constructors raise where a scalar is not what its tag says."""
_TOO_LARGE = 10**MAX_DIGITS
_TOO_DEEP = "maximum nesting depth"
"""How libyaml says that it stops before all brackets are open."""
TOO_DEEP = f"nested deeper than {MAX_DEPTH} levels"
_TAGS: dict[tuple[str, tuple[bool, bool]], str] = {}
_LONGEST_KNOWN, _MOST_KNOWN = 64, 10_000
_READ: dict[str, bytes] = {}
"""What a file's text holds, pickled: whoever reads it again gets values of its own."""
_LONGEST_READ, _MOST_READ = 2**17, 1000
_STRING = "tag:yaml.org,2002:str"
_NOT_SPECIFIC = ("", "!", None)
_PLAIN_COLLECTIONS = (*_NOT_SPECIFIC, "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")


@dataclass(kw_only=True, eq=False, slots=True)
class Node:
    """A scalar, collection or alias, and where it stands in the text.

    Nothing changes one; it is not frozen because frozen ones take thrice as long to make.
    """

    kind: Literal["scalar", "mapping", "sequence", "alias"]
    line: int
    """From 1."""
    column: int
    """From 0."""
    start: int
    end: int
    """Behind the last character; of a block scalar or collection: where the next token starts."""
    value: Any = None
    """Of a scalar."""
    text: str = ""
    """Of a scalar, unquoted."""
    is_plain: bool = False
    """A scalar without quotes."""
    is_block: bool = False
    """A collection or scalar that ends by its indentation."""
    is_anchored: bool = False
    pairs: tuple[tuple["Node", "Node"], ...] = ()
    items: tuple["Node", ...] = ()
    target: "Node | None" = None
    """Of an alias."""

    @property
    def resolved(self) -> "Node":
        """The node itself, or what the alias stands for."""
        return self.target or self

    @property
    def is_merge(self) -> bool:
        """Whether it is the key ``<<``, which brings in other mappings."""
        return self.is_plain and self.text == "<<"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A value with its line; of a value under a key, the key's."""

    value: Any
    line: int
    inner: "Mapping[str | int, Entry]" = field(default_factory=dict)
    """What a mapping or list holds."""


@dataclass(frozen=True, kw_only=True)
class Duplicate:
    """A key given twice in one mapping; the last one counts."""

    path: Path
    line: int


@dataclass(frozen=True, kw_only=True)
class YamlText:
    """A YAML text that was read."""

    top: Entry
    duplicates: tuple[Duplicate, ...]
    root: Node | None

    @property
    def value(self) -> Any:  # noqa: ANN401
        """As ``safe_load`` returns it, with every key a string; None of an empty text."""
        return self.top.value

    @cached_property
    def entries(self) -> Mapping[Path, Entry]:
        """Every value by its path; mappings and sequences beside what they hold."""
        return dict(_entries(self.top, ()))


def _entries(entry: Entry, path: Path) -> Iterator[tuple[Path, Entry]]:
    for name, inner in entry.inner.items():
        yield (*path, name), inner
        yield from _entries(inner, (*path, name))


@dataclass(kw_only=True)
class _Composer:
    """Builds nodes while events arrive."""

    where: str
    loader: Any
    anchors: dict[str, Node] = field(default_factory=dict)
    open: list[tuple[Any, list[Node]]] = field(default_factory=list)
    roots: list[Node] = field(default_factory=list)
    num_nodes: int = 0

    def refuse(self, event: Event, message: str) -> InputError:
        return InputError.single(self.where, f"line {event.start_mark.line + 1}", message)

    def take(self, event: Event) -> None:
        """Add what an event brings."""
        if isinstance(event, yaml.ScalarEvent):
            self._add(event, self._scalar(event))
        elif isinstance(event, yaml.CollectionStartEvent):
            self.open.append((event, []))
            if len(self.open) > MAX_DEPTH:
                raise self.refuse(event, TOO_DEEP)
        elif isinstance(event, yaml.CollectionEndEvent):
            start, children = self.open.pop()
            self._add(start, self._collection(start, event, children))
        elif isinstance(event, yaml.AliasEvent):
            self._add(event, self._alias(event))

    def _add(self, event: Event, node: Node) -> None:
        (self.open[-1][1] if self.open else self.roots).append(node)
        if node.kind != "alias" and event.anchor:
            self.anchors[event.anchor] = node
        self.num_nodes += 1
        if self.num_nodes > MAX_VALUES:
            raise self.refuse(event, f"more than {MAX_VALUES:,} keys and values")
        if len(self.roots) > 1:
            raise self.refuse(event, "a second document; allowed is one")

    def _collection(self, start: Event, end: Event, children: list[Node]) -> Node:
        if start.tag not in _PLAIN_COLLECTIONS:
            message = f"tag {start.tag} asks for an object; allowed are plain values"
            raise self.refuse(start, message)
        common = {
            **_place(start, end),
            "is_block": not start.flow_style,
            "is_anchored": bool(start.anchor),
        }
        if isinstance(start, yaml.SequenceStartEvent):
            return Node(kind="sequence", items=tuple(children), **common)
        pairs = tuple(zip(children[::2], children[1::2], strict=True))
        return Node(kind="mapping", pairs=pairs, **common)

    def _scalar(self, event: Event) -> Node:
        start, style = event.start_mark, event.style
        return Node(
            kind="scalar",
            line=start.line + 1,
            column=start.column,
            start=start.index,
            end=event.end_mark.index,
            value=self._value(event),
            text=event.value,
            is_plain=style is None or style == "",
            is_block=style in ("|", ">"),
            is_anchored=bool(event.anchor),
        )

    def _resolved(self, text: str, implicit: tuple[bool, bool]) -> str:
        """The tag of a scalar without one; that of a short text is known from then on."""
        tag = _TAGS.get((text, implicit))
        if tag is None:
            tag = str(self.loader.resolve(yaml.ScalarNode, text, implicit))
            if len(text) <= _LONGEST_KNOWN and len(_TAGS) < _MOST_KNOWN:
                _TAGS[text, implicit] = tag
        return tag

    def _value(self, event: Event) -> object:
        """The plain value, as PyYAML's safe loader makes it."""
        tag = event.tag
        if tag in _NOT_SPECIFIC:
            tag = self._resolved(event.value, event.implicit)
        if tag in (_STRING, "tag:yaml.org,2002:merge"):
            return event.value
        num_digits = len(event.value.lstrip("-"))
        try:
            if num_digits <= MAX_DIGITS:
                node = yaml.ScalarNode(tag, event.value, event.start_mark, event.end_mark)
                value: object = self.loader.construct_object(node, deep=True)
                if not isinstance(value, int) or abs(value) < _TOO_LARGE:
                    return value
        except (yaml.YAMLError, *_WRONG) as error:
            reason = getattr(error, "problem", None) or str(error)
            raise self.refuse(event, f"{event.value!r} cannot be read: {reason}") from None
        message = f"a number of {num_digits:,} digits; at most {MAX_DIGITS} are read"
        raise self.refuse(event, message)

    def _alias(self, event: Event) -> Node:
        if any(start.anchor == event.anchor for start, _ in self.open):
            raise self.refuse(event, "refers to itself through an alias")
        if event.anchor not in self.anchors:
            raise self.refuse(event, f"alias *{event.anchor} stands for nothing before it")
        target = self.anchors[event.anchor]
        return Node(kind="alias", target=target, **_place(event, event))


def _place(start: Event, end: Event) -> dict[str, Any]:
    mark = start.start_mark
    return {
        "line": mark.line + 1,
        "column": mark.column,
        "start": mark.index,
        "end": end.end_mark.index,
    }


def compose(where: str, text: str) -> Node | None:
    """Return the root of a text, None of an empty one.

    InputError, with the line, where it is no YAML, holds what a safe loader refuses, or is beyond
    the limits.
    """
    try:
        loader = _Loader(text)
        composer = _Composer(where=where, loader=loader)
        while loader.check_event():
            composer.take(loader.get_event())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        last = len(BREAK.findall(text)) + 1
        line = min(mark.line + 1, last) if mark else 1
        problem = " ".join(filter(None, (error.context, error.problem)))
        if _TOO_DEEP in problem:
            raise InputError.single(where, f"line {line}", TOO_DEEP) from None
        raise InputError.single(where, f"line {line}", f"not YAML: {problem}") from None
    except yaml.reader.ReaderError as error:
        line = text.encode()[: error.position].count(b"\n") + 1
        raise InputError.single(where, f"line {line}", f"not YAML: {error.reason}") from None
    except (ValueError, OverflowError) as error:
        raise InputError.single(where, "file", f"not YAML: {error}") from None
    return composer.roots[0] if composer.roots else None


@dataclass(kw_only=True)
class _Walk:
    """Collects values and duplicate keys while the nodes are visited."""

    where: str
    duplicates: list[Duplicate] = field(default_factory=list)
    num_values: int = 0
    num_merging: int = 0
    """Merge keys at work, one inside the other."""

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
            return Entry(value={k: each.value for k, each in inner.items()}, line=line, inner=inner)
        if target.kind == "sequence":
            items = [self.visit(item, (*path, i), item.line) for i, item in enumerate(target.items)]
            return Entry(
                value=[each.value for each in items], line=line, inner=dict(enumerate(items))
            )
        return Entry(value=target.value, line=line)

    def _mapping(self, node: Node, path: Path) -> dict[str | int, Entry]:
        found: dict[str | int, Entry] = {}
        for key, item in reversed(node.pairs):
            if key.is_merge:
                found |= self._merged(item, path)
        own: set[str] = set()
        for key, item in node.pairs:
            if key.is_merge:
                continue
            name = self._name(key)
            if name in own:
                self.duplicates.append(Duplicate(path=(*path, name), line=key.line))
            own.add(name)
            found.pop(name, None)
            found[name] = self.visit(item, (*path, name), key.line)
        return found

    def _merged(self, node: Node, path: Path) -> dict[str | int, Entry]:
        """What a merge key brings in; of several mappings the first one counts."""
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

    def _name(self, key: Node) -> str:
        if key.resolved.kind != "scalar":
            raise self.refuse(key, "a mapping or a list as key; allowed are plain words")
        return key.resolved.text


def parsed(where: str, text: str) -> YamlText:
    """Read a text; InputError, with the line, where it is no YAML or beyond the limits."""
    root = compose(where, text)
    walk = _Walk(where=where)
    top = walk.visit(root, (), root.line) if root else Entry(value=None, line=1)
    return YamlText(top=top, duplicates=tuple(walk.duplicates), root=root)


def load_yaml(path: str | FilePath) -> dict[str, Any]:
    """Return the mapping a file holds; what cannot be read raises ``file::line N: ...``.

    A text that was read before is not parsed again.
    """
    text = read_text(path)
    if text in _READ:
        known: dict[str, Any] = pickle.loads(_READ[text])
        return known
    found = _mapping_of(str(path), text)
    if len(text) <= _LONGEST_READ and len(_READ) < _MOST_READ:
        _READ[text] = pickle.dumps(found)
    return found


def _mapping_of(where: str, source: str) -> dict[str, Any]:
    text = _unambiguous(where, source)
    if not isinstance(text.value, dict):
        kind = type(text.value).__name__
        raise InputError.single(where, "line 1", f"must be a mapping of keys, is a {kind}")
    for key, _ in text.root.resolved.pairs if text.root else ():
        if not isinstance(key.resolved.value, str):
            given = repr(key.resolved.value)
            raise InputError.single(where, given, "keys must be words, quote it if it is one")
    return text.value


def load_data(package: str, *names: str) -> Any:  # noqa: ANN401
    """Return what a YAML file that ships in a package holds."""
    path = resources.files(package).joinpath(*names)
    return _unambiguous(str(path), path.read_text(encoding="utf-8")).value


def _unambiguous(where: str, text: str) -> YamlText:
    found = parsed(where, text)
    if found.duplicates:
        raise InputError(
            Problem(
                where=where,
                key=f"line {each.line}",
                message=f"key {each.path[-1]!r} is given twice in one mapping",
            )
            for each in found.duplicates
        )
    return found
