"""The nodes of a YAML text with their places, made from PyYAML's events."""

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import yaml

from planner.errors import InputError

Event: TypeAlias = Any
"""An event of PyYAML's; its stubs leave open whether it has marks."""
MAX_CHARACTERS = 250_000
MAX_NESTING = 50
MAX_PLAIN = 200
"""Characters of a number, date or boolean; what is longer stays text."""
_WRONG = (ValueError, OverflowError, TypeError, KeyError, IndexError, AttributeError)
"""What PyYAML's constructors raise where a scalar is not what its tag says."""
_STRING = "tag:yaml.org,2002:str"
_NOT_SPECIFIC = ("", "!", None)
_PLAIN_COLLECTIONS = (*_NOT_SPECIFIC, "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")


@dataclass(frozen=True, kw_only=True, eq=False)
class Node:
    """A scalar, collection or alias, and where it stands in the text."""

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


@dataclass(kw_only=True)
class _Composer:
    """Builds nodes while events arrive."""

    where: str
    loader: Any
    anchors: dict[str, Node] = field(default_factory=dict)
    open: list[tuple[Any, list[Node]]] = field(default_factory=list)
    roots: list[Node] = field(default_factory=list)

    def refuse(self, event: Event, message: str) -> InputError:
        line = event.start_mark.line + 1
        return InputError.single(self.where, f"line {line}", message)

    def take(self, event: Event) -> None:
        """Add what an event brings."""
        if isinstance(event, yaml.CollectionStartEvent):
            self.open.append((event, []))
            if len(self.open) > MAX_NESTING:
                raise self.refuse(event, f"nested deeper than {MAX_NESTING} levels")
        elif isinstance(event, yaml.CollectionEndEvent):
            start, children = self.open.pop()
            self._add(start, self._collection(start, event, children))
        elif isinstance(event, yaml.ScalarEvent):
            self._add(event, self._scalar(event))
        elif isinstance(event, yaml.AliasEvent):
            self._add(event, self._alias(event))

    def _add(self, event: Event, node: Node) -> None:
        (self.open[-1][1] if self.open else self.roots).append(node)
        if node.kind != "alias" and event.anchor:
            self.anchors[event.anchor] = node
        if len(self.roots) > 1:
            raise self.refuse(event, "a second document; allowed is one")

    def _collection(self, start: Event, end: Event, children: list[Node]) -> Node:
        if start.tag not in _PLAIN_COLLECTIONS:
            raise self.refuse(
                start, f"tag {start.tag} asks for an object; allowed are plain values"
            )
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
        is_plain = event.style is None
        return Node(
            kind="scalar",
            value=self._value(event),
            text=event.value,
            is_plain=is_plain,
            is_block=event.style in ("|", ">"),
            is_anchored=bool(event.anchor),
            **_place(event, event),
        )

    def _value(self, event: Event) -> object:
        """The plain value, as PyYAML's safe loader makes it."""
        tag = event.tag
        if tag in _NOT_SPECIFIC:
            tag = self.loader.resolve(yaml.ScalarNode, event.value, event.implicit)
        if tag == _STRING or len(event.value) > MAX_PLAIN:
            return event.value
        if tag == "tag:yaml.org,2002:merge":
            return event.value
        try:
            node = yaml.ScalarNode(tag, event.value, event.start_mark, event.end_mark)
            return self.loader.construct_object(node)
        except (yaml.YAMLError, *_WRONG) as error:
            reason = getattr(error, "problem", None) or str(error)
            raise self.refuse(event, f"{event.value!r} cannot be read: {reason}") from None

    def _alias(self, event: Event) -> Node:
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

    InputError where it is no YAML, holds what a safe loader refuses, is too large or too deep.
    """
    if len(text) > MAX_CHARACTERS:
        message = f"{len(text)} characters; at most {MAX_CHARACTERS} are read"
        raise InputError.single(where, "text", message)
    try:
        loader = yaml.SafeLoader(text)
        composer = _Composer(where=where, loader=loader)
        while loader.check_event():
            composer.take(loader.get_event())  # type: ignore[no-untyped-call]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        problem = " ".join(filter(None, (error.context, error.problem)))
        raise InputError.single(where, f"line {line}", f"no YAML: {problem}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise InputError.single(where, f"line {line}", f"no YAML: {error.reason}") from None
    except (ValueError, OverflowError) as error:
        raise InputError.single(where, "text", f"no YAML: {error}") from None
    return composer.roots[0] if composer.roots else None
