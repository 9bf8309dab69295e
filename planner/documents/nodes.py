"""Documents as nodes: YAML by the events of PyYAML, JSON plain or with comments.

The frameworks read their YAML with PyYAML's ``safe_load``: what ``no``, ``1e-3`` and merge keys
mean there, they mean here. Nothing is constructed but plain values. Beside plain JSON, comments
(``//``, ``#``, ``/* */``) and commas after the last member are read, as DeepSpeed's own loader
does; the further liberties of Hjson (no quotes, no commas) are not.
"""

import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from json import JSONDecodeError, JSONDecoder
from typing import Any, Literal, NoReturn, TypeAlias

import yaml

from planner.errors import InputError
from planner.limits import MAX_DEPTH, MAX_DIGITS, MAX_VALUES

Path = tuple[str | int, ...]  # of a value: the keys, and places in lists, that lead to it
Event: TypeAlias = Any  # an event of PyYAML's; its stubs leave open whether it has marks
TOO_DEEP = f"nested deeper than {MAX_DEPTH} levels"
_NOT_SPECIFIC = ("", "!", None)
# In the place of the end of a collection whose end has not been read.
_OPEN = -1
Plain: TypeAlias = Any  # what Python's json makes of a value
# White space and comments.
SPACE = re.compile(r"(?:[ \t\r\n]+|(?://|#)[^\r\n]*|/\*.*?\*/)*", re.DOTALL)
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_DECODER = JSONDecoder()
# With those that Python's json writes for what no number is.
_WORDS: dict[str, Plain] = {"true": True, "false": False, "null": None}
_WORDS |= {word: float(word) for word in ("NaN", "Infinity", "-Infinity")}


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
        named = (
            (key, item)
            for key, item in reversed(self.pairs)
            if key.resolved.text == name and not key.is_merge
        )
        return next(named, None)


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
            raise self.refuse(
                start, f"tag {start.tag} asks for an object; allowed are plain values"
            )
        node.end, node.is_block = self.loader.get_event().end_mark.index, not start.flow_style
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
        raise self.refuse(
            event, f"a number of {num_digits:,} digits; at most {MAX_DIGITS} are read"
        )


def compose(where: str, text: str) -> Node | None:
    """Return the root of a text, None of an empty one; InputError, with the line, of bad YAML."""
    try:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text)
        return _Composer(where=where, loader=loader).document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        breaks = re.findall(r"\r\n|[\n\r\x85\u2028\u2029]", text)
        line = min(mark.line, len(breaks)) + 1 if mark else 1
        problem = " ".join(filter(None, (error.context, error.problem)))
        # how libyaml says that it stops before all brackets are open
        is_deep = "maximum nesting depth" in problem
        message = TOO_DEEP if is_deep else f"not YAML: {problem}"
        raise InputError.single(where, f"line {line}", message) from None
    except yaml.reader.ReaderError as error:
        line = text.encode()[: error.position].count(b"\n") + 1
        raise InputError.single(where, f"line {line}", f"not YAML: {error.reason}") from None
    except (ValueError, OverflowError) as error:
        raise InputError.single(where, "file", f"not YAML: {error}") from None


def parse_json(where: str, text: str) -> Node:
    """Read a text; InputError with file and line where it is no JSON, or beyond the limits."""
    return _Parser(where, text).document()


class _Parser:
    """Recursive descent; ``at`` is the next character to be read."""

    def __init__(self, where: str, text: str) -> None:
        self.text, self.where, self.at = text, where, 0
        self.line_ends = [found.start() for found in re.finditer("\n", text)]
        self.num_values = 0

    def document(self) -> Node:
        self.skip()
        root = self.value(0)
        self.skip()
        if self.at < len(self.text):
            self.fail("one value is allowed, and text follows it")
        return root

    def node(self) -> Node:
        """A scalar that begins here, as yet empty."""
        number = bisect_left(self.line_ends, self.at)
        column = self.at - (self.line_ends[number - 1] + 1 if number else 0)
        return Node(line=number + 1, column=column, start=self.at, end=self.at)

    def fail(self, message: str) -> NoReturn:
        rest = self.text[self.at : self.at + 12]
        message = f"not JSON: {message}; given {repr(rest) if rest else 'the end'}"
        raise InputError.single(self.where, f"line {self.node().line}", message)

    def skip(self) -> None:
        """Pass over white space and comments."""
        found = SPACE.match(self.text, self.at)
        self.at = found.end() if found else self.at
        if self.text.startswith("/*", self.at):
            self.fail("a comment has no end")

    def takes(self, word: str) -> bool:
        if not self.text.startswith(word, self.at):
            return False
        self.at += len(word)
        return True

    def value(self, depth: int) -> Node:
        if depth > MAX_DEPTH:
            self.fail(f"nested deeper than {MAX_DEPTH} levels")
        self.num_values += 1
        if self.num_values > MAX_VALUES:
            self.fail(f"more than {MAX_VALUES:,} values")
        node = self.node()
        if self.takes("{"):
            node.kind, node.pairs = "mapping", tuple(self.members(depth))
        elif self.takes("["):
            items = (self.value(depth + 1) for _ in self.until("]"))
            node.kind, node.items = "sequence", tuple(items)
        else:
            node.value = self.scalar()
        node.end = self.at
        return node

    def until(self, closing: str) -> Iterator[None]:
        """Stop at each of what commas separate; one may stand before the closing bracket."""
        self.skip()
        while not self.takes(closing):
            yield
            self.skip()
            if self.takes(","):
                self.skip()
            elif not self.text.startswith(closing, self.at):
                self.fail(f'"," or "{closing}" must follow')

    def members(self, depth: int) -> Iterator[tuple[Node, Node]]:
        for _ in self.until("}"):
            key = self.node()
            if not self.text.startswith('"', self.at):
                self.fail('a key in double quotes or "}" must follow')
            key.value = key.text = self.string()
            key.end = self.at
            self.skip()
            if not self.takes(":"):
                self.fail(f'":" must follow the key {key.text!r}')
            self.skip()
            yield key, self.value(depth + 1)

    def string(self) -> str:
        try:
            decoded, end = _DECODER.raw_decode(self.text, self.at)
            value = str(decoded)
            value.encode()
        except (JSONDecodeError, UnicodeEncodeError):
            self.fail("a string has no end, a control character, or an escape that is none")
        self.at = end
        return value

    def scalar(self) -> Plain:
        if self.text.startswith('"', self.at):
            return self.string()
        for word, value in _WORDS.items():
            if self.takes(word):
                return value
        found = _NUMBER.match(self.text, self.at)
        if found is None:
            self.fail("a value must follow")
        num_digits = len(found[0].lstrip("-"))
        if num_digits > MAX_DIGITS:
            self.fail(f"a number of {num_digits:,} digits; at most {MAX_DIGITS} are read")
        self.at = found.end()
        return int(found[0]) if found[1] is None and found[2] is None else float(found[0])
