"""A document as nodes, whatever it is written in, and YAML as nodes by the events of PyYAML.

The frameworks read their files with PyYAML's ``safe_load``: what ``no``, ``1e-3`` and merge keys
mean there, they mean here. Nothing is constructed but plain values.
"""

import re
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import yaml

from planner.errors import InputError
from planner.limits import MAX_DEPTH, MAX_DIGITS, MAX_VALUES

Path = tuple[str | int, ...]  # of a value: the keys, and places in lists, that lead to it
BREAK = re.compile(r"\r\n|[\n\r\x85\u2028\u2029]")
Event: TypeAlias = Any  # an event of PyYAML's; its stubs leave open whether it has marks
# What PyYAML's constructors raise where a scalar is not what its tag says.
_WRONG = (ValueError, OverflowError, TypeError, KeyError, IndexError, AttributeError)
TOO_DEEP = f"nested deeper than {MAX_DEPTH} levels"
_NOT_SPECIFIC = ("", "!", None)


@dataclass(kw_only=True, eq=False, slots=True)
class Node:
    """A scalar, collection or alias, and where it stands in the text.

    Nothing changes one; it is not frozen because frozen ones take thrice as long to make.
    """

    kind: Literal["scalar", "mapping", "sequence", "alias"]
    line: int  # from 1
    column: int  # from 0
    start: int
    # Behind the last character; of a block scalar or collection: where the next token starts.
    end: int
    value: Any = None  # of a scalar
    text: str = ""  # of a scalar of YAML, or a key of JSON, unquoted
    is_plain: bool = False  # a scalar of YAML without quotes
    is_block: bool = False  # a collection or scalar that ends by its indentation
    is_anchored: bool = False
    pairs: tuple[tuple["Node", "Node"], ...] = ()  # of a mapping, duplicates included
    items: tuple["Node", ...] = ()
    target: "Node | None" = None  # of an alias

    @property
    def resolved(self) -> "Node":
        """The node itself, or what the alias stands for."""
        return self.target or self

    @property
    def is_merge(self) -> bool:
        """True if it is the key ``<<``, which merges other mappings."""
        return self.is_plain and self.text == "<<"

    def find(self, name: str) -> "tuple[Node, Node] | None":
        """The pair of a key, the last of duplicates; None where there is none."""
        for key, item in reversed(self.pairs):
            if key.resolved.text == name and not key.is_merge:
                return key, item
        return None


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
        if start.tag not in (*_NOT_SPECIFIC, "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"):
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
        return Node(
            kind="scalar",
            **_place(event, event),
            value=self._value(event),
            text=event.value,
            is_plain=not event.style,
            is_block=event.style in ("|", ">"),
            is_anchored=bool(event.anchor),
        )

    def _value(self, event: Event) -> object:
        """The plain value, as PyYAML's safe loader makes it."""
        tag = event.tag
        if tag in _NOT_SPECIFIC:
            tag = self.loader.resolve(yaml.ScalarNode, event.value, event.implicit)
        if tag in ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"):
            return event.value
        num_digits = len(event.value.lstrip("-"))
        try:
            if num_digits <= MAX_DIGITS:
                node = yaml.ScalarNode(tag, event.value, event.start_mark, event.end_mark)
                value: object = self.loader.construct_object(node, deep=True)
                if not isinstance(value, int) or abs(value) < 10**MAX_DIGITS:
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

    InputError, with the line: no YAML, what a safe loader refuses, or beyond the limits.
    """
    try:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text)
        composer = _Composer(where=where, loader=loader)
        while loader.check_event():
            composer.take(loader.get_event())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        last = len(BREAK.findall(text)) + 1
        line = min(mark.line + 1, last) if mark else 1
        problem = " ".join(filter(None, (error.context, error.problem)))
        # how libyaml says that it stops before all brackets are open
        if "maximum nesting depth" in problem:
            raise InputError.single(where, f"line {line}", TOO_DEEP) from None
        raise InputError.single(where, f"line {line}", f"not YAML: {problem}") from None
    except yaml.reader.ReaderError as error:
        line = text.encode()[: error.position].count(b"\n") + 1
        raise InputError.single(where, f"line {line}", f"not YAML: {error.reason}") from None
    except (ValueError, OverflowError) as error:
        raise InputError.single(where, "file", f"not YAML: {error}") from None
    return composer.roots[0] if composer.roots else None
