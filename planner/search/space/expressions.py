"""Conditions over columns of strategies, from text, and the names that a user may say in them.

They are computed by :mod:`planner.expr`; only what is true holds.
"""

import ast
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from planner.cost.context import Context
from planner.errors import did_you_mean
from planner.expr import Language, Names, computed, faults, names_in, own_tree, parsed
from planner.limits import MAX_CONDITION_CHARACTERS, MAX_LITERAL, brief
from planner.search.space.rule import Clauses, Columns
from planner.spec.strategy import (
    GPU_DEGREES,
    OFFLOAD_POLICIES,
    RECOMPUTED,
    SEARCHED_FIELDS,
    STRATEGY_FIELDS,
)
from planner.units import Array, Mask

RECOMPUTE = "recompute"
# Words of ``recompute``, and the kinds they leave: it says nothing of where activations lie.
RECOMPUTE_KINDS: Mapping[str, tuple[str, ...]] = {
    "none": ("none", *OFFLOAD_POLICIES),
    **{name: (name,) for name in RECOMPUTED},
}
# No dimension is larger.
LARGEST = 2**20


@dataclass(frozen=True, kw_only=True)
class Dimension:
    """The values one column of strategies can take at all."""

    name: str
    least: int = 1
    largest: int = LARGEST
    words: Mapping[str, int] = field(default_factory=dict)
    """Codes by name; empty where the values are numbers."""

    @property
    def domain(self) -> Array:
        """Every value, ascending."""
        if self.words:
            return np.array(sorted(set(self.words.values())), dtype=np.float64)
        return np.arange(self.least, self.largest + 1, dtype=np.float64)

    @property
    def allowed(self) -> str:
        """The values in words."""
        if self.words:
            return ", ".join(self.words)
        return f"whole numbers from {self.least} to {self.largest:,}"

    def shown(self, value: int) -> str:
        """The name of a code, or the number."""
        return next((word for word, code in self.words.items() if code == value), str(value))


DIMENSIONS: Mapping[str, Dimension] = {
    name: Dimension(
        name=name,
        least=known.least,
        largest=min(known.most, LARGEST),
        words={"off": 0, "on": 1, "false": 0, "true": 1, "0": 0, "1": 1}
        if known.is_flag
        else {word: i for i, word in enumerate(known.words)},
    )
    for name, known in ((name, STRATEGY_FIELDS[name]) for name in SEARCHED_FIELDS)
}
ALIASES: Mapping[str, str] = {"sp": "sequence_parallel", "zero": "zero_stage"}
# Numbers that follow from dimensions (the last also from the global batch).
DERIVED: Mapping[str, str] = {
    "gpus": " * ".join(GPU_DEGREES),
    "dp_shard": "dp // dp_replicate",
    "num_micro_batches": "global_batch // (dp * micro_batch)",
}
# What an expression may compare.
KNOWN_NAMES = (*DIMENSIONS, *ALIASES, *DERIVED, RECOMPUTE)
# What can be forbidden, and what holds then.
FEATURES: Mapping[str, str] = {
    "offload": "offload == none",
    RECOMPUTE: "recompute == none",
    "interleaving": "vpp == 1",
    "sequence-parallel": "sequence_parallel == off",
    "context-parallel": "cp == 1",
    "expert-parallel": "ep == 1",
    "tensor-parallel": "tp == 1",
    "pipeline": "pp == 1",
    "hybrid-sharding": "dp_replicate == 1",
}
# Layers of one stage under different policies, whatever the framework can say.
MIXED_LAYERS = "mixed-layers"
# What a search looks at only where it is allowed.
OFF_BY_DEFAULT = ("cross-domain-tp", MIXED_LAYERS)
# What was once left out, and is searched now without a word.
ALWAYS = ("short-context-parallel", "large-micro-batch")
WORDS = frozenset(word for dimension in DIMENSIONS.values() for word in dimension.words) | {
    *RECOMPUTE_KINDS
}

_ALONE = (
    "recompute may be compared only by itself or joined with `and`, such as "
    "recompute in (none, selective)"
)
_LISTS = (ast.Tuple, ast.List, ast.Set)
# Words that Python would not read as one name; the longest first.
_ODD_WORDS = "|".join(
    re.escape(word)
    for word in sorted(WORDS, key=lambda word: (-len(word), word))
    if not word.isidentifier() and not word.isdigit()
)
_TOKEN = re.compile(rf"(\"[^\"]*\"|'[^']*')|(?<![\w:+-])(?:{_ODD_WORDS})(?![\w:+-])")


@dataclass(frozen=True, kw_only=True)
class Condition:
    """Condition on a layout: columns in, a mask out."""

    text: str
    needs: tuple[str, ...]
    # It reads the global batch, so it cannot be asked without a context.
    needs_job: bool
    tree: ast.expr = field(compare=False, repr=False)

    def __call__(self, context: Context | None, columns: Columns) -> Mask:
        """Return where the condition is true."""
        numbers = {} if context is None else {"global_batch": context.job.global_batch}

        def column(name: str) -> Array:
            found = numbers[name] if name in numbers else columns[name]
            return np.asarray(found, dtype=np.float64)

        with np.errstate(all="ignore"):
            return np.asarray(computed(self.tree, Names(column, {}, DERIVED)) == 1.0)

    def clauses(self, context: Context, columns: Columns) -> Clauses:
        """Return the condition as a rule without words of its own."""
        return {"": self(context, columns)}


def hinted(message: str, name: str, known: Collection[str]) -> str:
    """Return the message with the names allowed and the nearest of them."""
    return f"{message}; allowed are {', '.join(known)}; {did_you_mean(name, known)}".rstrip("; ")


def parse_expression(
    text: str, *, single: bool = False
) -> tuple[Condition | None, list[frozenset[str]]]:
    """Read an expression in two parts: about columns, and about the layers' activations.

    Each of the second leaves these kinds of layers; none where recomputation is not spoken of.
    ``single`` allows one comparison only.

    Raises ValueError saying what is wrong.
    """
    source = text.strip().lower()
    if len(source) <= MAX_CONDITION_CHARACTERS:
        source = _TOKEN.sub(lambda match: match[1] or f'"{match[0]}"', source)
    if re.search(r"(?<![<>=!])=(?!=)", source):
        raise ValueError("compare with ==; a single = is for --fix")
    tree = own_tree(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            node.id = ALIASES.get(node.id, node.id)
    if single and not isinstance(tree, ast.Compare):
        raise ValueError("must be one comparison such as tp<=8; --where takes and, or, not")
    terms = _terms(tree)
    kinds = [_kinds(term) for term in terms if RECOMPUTE in names_in(term)]
    others = [term for term in terms if RECOMPUTE not in names_in(term)]
    return _condition(text, others) if others else None, kinds


def _terms(tree: ast.expr) -> list[ast.expr]:
    """Return the terms joined by `and`, at any depth."""
    if isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And):
        return [term for value in tree.values for term in _terms(value)]
    return [tree]


def _kinds(term: ast.expr) -> frozenset[str]:
    """The kinds of layers that a comparison of ``recompute`` leaves."""
    if not isinstance(term, ast.Compare) or len(term.ops) != 1:
        raise ValueError(_ALONE)
    left, operator, right = term.left, term.ops[0], term.comparators[0]
    if isinstance(operator, ast.Eq | ast.NotEq) and ast.unparse(right) == RECOMPUTE:
        left, right = right, left
    if not isinstance(left, ast.Name) or left.id != RECOMPUTE:
        raise ValueError(_ALONE)
    words = _words(RECOMPUTE, RECOMPUTE_KINDS, operator, right)
    inverted = isinstance(operator, ast.NotEq | ast.NotIn)
    kept = [word for word in RECOMPUTE_KINDS if (word in words) != inverted]
    return frozenset(kind for word in kept for kind in RECOMPUTE_KINDS[word])


def _words(name: str, known: Collection[str], operator: ast.cmpop, right: ast.expr) -> list[str]:
    """Return the words a name is compared with; raises ValueError where they are not known."""
    if not isinstance(operator, ast.Eq | ast.NotEq | ast.In | ast.NotIn):
        raise ValueError(f"{name} has names, not sizes; compare it with ==, != or in")
    is_list = isinstance(operator, ast.In | ast.NotIn)
    nodes = _elements(right) if is_list else [right]
    words = [str(n.value) if isinstance(n, ast.Constant) else ast.unparse(n) for n in nodes]
    for word in words:
        if word not in known:
            raise ValueError(hinted(f"{name} cannot be {brief(word)}", word, known))
    return words


def _elements(node: ast.expr) -> list[ast.expr]:
    elements = node.elts if isinstance(node, _LISTS) else [node]
    if not elements:
        raise ValueError("an empty list allows nothing; name what is allowed")
    return elements


def _condition(text: str, terms: list[ast.expr]) -> Condition:
    tree = ast.BoolOp(ast.And(), [_coded(term) for term in terms])
    if wrong := list(faults(tree, _LANGUAGE, KNOWN_NAMES)):
        raise ValueError("; ".join(wrong))
    names = names_in(tree)
    read = {each for name in names for each in names_in(parsed(DERIVED.get(name, name)))}
    needs = tuple(name for name in DIMENSIONS if name in read)
    if not needs:
        raise ValueError("must name a dimension")
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            node.value = np.float64(node.value)  # which divides by zero without an error
    return Condition(text=text, needs=needs, needs_job="num_micro_batches" in names, tree=tree)


def _coded(node: ast.expr) -> ast.expr:
    """A condition with the codes of words in their place; raises ValueError where it is none."""
    match node:
        case ast.BoolOp(op=op, values=values):
            return ast.BoolOp(op, [_coded(value) for value in values])
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return ast.UnaryOp(ast.Not(), _coded(operand))
        case ast.Compare(left=first, ops=ops, comparators=rest):
            pairs = zip([first, *rest], ops, rest, strict=False)
            return ast.BoolOp(ast.And(), [_coded_pair(*pair) for pair in pairs])
    raise ValueError(f"{ast.unparse(node)} is no condition; compare it, such as tp<=8")


def _coded_pair(left: ast.expr, operator: ast.cmpop, right: ast.expr) -> ast.Compare:
    if isinstance(operator, ast.Eq | ast.NotEq) and _has_words(right) and not _has_words(left):
        left, right = right, left
    if isinstance(left, ast.Name) and _has_words(left):
        codes = DIMENSIONS[left.id].words
        words = _words(left.id, codes, operator, right)
        right = ast.List([ast.Constant(codes[word]) for word in words])
        operator = ast.In() if isinstance(operator, ast.Eq | ast.In) else ast.NotIn()
        return ast.Compare(left, [operator], [right])
    if isinstance(operator, ast.In | ast.NotIn):
        right = ast.List(_elements(right))
    for each in [left, *getattr(right, "elts", [right])]:
        _check_number(each)
    return ast.Compare(left, [operator], [right])


def _has_words(node: ast.expr) -> bool:
    """Return True if the node is a dimension whose values are names."""
    return isinstance(node, ast.Name) and node.id in DIMENSIONS and bool(DIMENSIONS[node.id].words)


def _check_number(node: ast.expr) -> None:
    """Raise ValueError where a part can be no number; names and forms are checked later."""
    for part in ast.walk(node):
        match part:
            case ast.Name():
                is_number = not _has_words(part) and part.id not in WORDS
            case ast.Constant(value=int(value)) if value > MAX_LITERAL:
                raise ValueError(f"numbers must be at most {MAX_LITERAL:,}, not {value}")
            case ast.Constant(value=value):
                is_number = type(value) is int
            case _:
                is_number = not isinstance(part, (ast.BoolOp, ast.Compare, ast.Not, *_LISTS))
        if not is_number:
            text = ast.unparse(part)
            message = f"{text} is no whole number; words go with ==, != or in"
            raise ValueError(f"{message}, as in schedule == 1f1b; allowed are {_LANGUAGE.allowed}")


_LANGUAGE = Language(
    forms=_LISTS,
    without=(ast.Is, ast.IsNot),
    allowed="names, whole numbers, + - * // %, comparisons with == != < <= > >=, in, and, or, not",
)
