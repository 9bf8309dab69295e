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
Event: TypeAlias = Any  # an event of PyYAML's; its stubs leave open whether it has marks
TOO_DEEP = f"nested deeper than {MAX_DEPTH} levels"
_NOT_SPECIFIC = ("", "!", None)
# In the place of the end of a collection whose end has not been read.
_OPEN = -1


@dataclass(kw_only=True, eq=False, slots=True)
class Node:
    """A scalar, collection or alias, and where it stands in the text; only readers change one."""

    kind: Literal["scalar", "mapping", "sequence", "alias"] = "scalar"
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
    """Builds nodes of the events of a text."""

    where: str
    loader: Any
    anchors: dict[str, Node] = field(default_factory=dict)
    num_nodes: int = 0

    def refuse(self, event: Event, message: str) -> InputError:
        return InputError.single(self.where, f"line {event.start_mark.line + 1}", message)

    def document(self) -> Node | None:
        """The root; None of a text without a node."""
        root = None
        while self.loader.check_event():
            event = self.loader.peek_event()
            if not isinstance(event, yaml.NodeEvent):
                self.loader.get_event()
            elif root:
                raise self.refuse(event, "a second document; allowed is one")
            else:
                root = self._node(0)
        return root

    def _node(self, depth: int) -> Node:
        event = self.loader.get_event()
        mark, end = event.start_mark, event.end_mark.index
        line, column = mark.line + 1, mark.column
        node = Node(line=line, column=column, start=mark.index, end=end)
        if isinstance(event, yaml.AliasEvent):
            node.kind, node.target = "alias", self._target(event)
        elif event.anchor:
            node.is_anchored, self.anchors[event.anchor] = True, node
        if isinstance(event, yaml.CollectionStartEvent):
            self._fill(node, event, depth)
        elif isinstance(event, yaml.ScalarEvent):
            node.value, node.text = self._value(event), event.value
            node.is_plain, node.is_block = not event.style, event.style in ("|", ">")
        self.num_nodes += 1
        if self.num_nodes > MAX_VALUES:
            raise self.refuse(event, f"more than {MAX_VALUES:,} keys and values")
        return node

    def _fill(self, node: Node, start: Event, depth: int) -> None:
        if depth >= MAX_DEPTH:
            raise self.refuse(start, TOO_DEEP)
        node.end, children = _OPEN, list[Node]()
        while not isinstance(self.loader.peek_event(), yaml.CollectionEndEvent):
            children.append(self._node(depth + 1))
        if start.tag not in (*_NOT_SPECIFIC, "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"):
            message = f"tag {start.tag} asks for an object; allowed are plain values"
            raise self.refuse(start, message)
        last = self.loader.get_event()
        node.end, node.is_block = last.end_mark.index, not start.flow_style
        if isinstance(start, yaml.SequenceStartEvent):
            node.kind, node.items = "sequence", tuple(children)
        else:
            pairs = zip(children[::2], children[1::2], strict=True)
            node.kind, node.pairs = "mapping", tuple(pairs)

    def _target(self, event: Event) -> Node:
        if event.anchor not in self.anchors:
            raise self.refuse(event, f"alias *{event.anchor} stands for nothing before it")
        if self.anchors[event.anchor].end == _OPEN:
            raise self.refuse(event, "refers to itself through an alias")
        return self.anchors[event.anchor]

    def _value(self, event: Event) -> object:
        """The plain value, as PyYAML's safe loader makes it."""
        tag = event.tag
        if tag in _NOT_SPECIFIC:
            tag = self.loader.resolve(yaml.ScalarNode, event.value, event.implicit)
        if tag in ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"):
            return event.value
        num_digits = len(event.value.lstrip("-"))
        # What PyYAML's constructors raise where a scalar is not what its tag says.
        wrong = (ValueError, OverflowError, TypeError, KeyError, IndexError, AttributeError)
        try:
            if num_digits <= MAX_DIGITS:
                node = yaml.ScalarNode(tag, event.value, event.start_mark, event.end_mark)
                value: object = self.loader.construct_object(node, deep=True)
                if not isinstance(value, int) or abs(value) < 10**MAX_DIGITS:
                    return value
        except (yaml.YAMLError, *wrong) as error:
            reason = getattr(error, "problem", None) or str(error)
            raise self.refuse(event, f"{event.value!r} cannot be read: {reason}") from None
        message = f"a number of {num_digits:,} digits; at most {MAX_DIGITS} are read"
        raise self.refuse(event, message)


def compose(where: str, text: str) -> Node | None:
    """Return the root of a text, None of an empty one.

    InputError, with the line: no YAML, what a safe loader refuses, or beyond the limits.
    """
    try:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text)
        return _Composer(where=where, loader=loader).document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        breaks = re.findall(r"\r\n|[\n\r\x85\u2028\u2029]", text)
        line = min(mark.line, len(breaks)) + 1 if mark else 1
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
