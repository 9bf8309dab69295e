"""A document as nodes: what stands where in a text of YAML, of JSON, or of JSON with comments."""

from dataclasses import dataclass
from typing import Any, Literal

Path = tuple[str | int, ...]  # of a value: the keys, and places in lists, that lead to it


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
        """Whether it is the key ``<<``, which brings in other mappings."""
        return self.is_plain and self.text == "<<"

    def find(self, name: str) -> "tuple[Node, Node] | None":
        """The pair of a key, the last of duplicates; None where there is none."""
        for key, item in reversed(self.pairs):
            if key.resolved.text == name and not key.is_merge:
                return key, item
        return None
