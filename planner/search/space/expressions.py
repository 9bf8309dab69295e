"""Conditions over columns of strategies, from text: parsed and checked, never run as Python."""

import ast
import re
import warnings
from dataclasses import dataclass, field

import numpy as np

from planner.cost.context import Context
from planner.limits import MAX_CONDITION_CHARACTERS, MAX_CONDITION_DEPTH, MAX_LITERAL
from planner.search.space.formulas import (
    ARITHMETIC,
    COMPARISONS,
    LISTS,
    SHAPE,
    Formula,
    all_of,
    hinted,
    shown,
    source_of,
    truth_of,
    words_of,
)
from planner.search.space.rule import Columns
from planner.search.space.vocabulary import (
    ALIASES,
    DERIVED,
    DIMENSIONS,
    RECOMPUTE,
    RECOMPUTE_KINDS,
    WORDS,
    known_names,
)
from planner.units import Mask

_ALONE = (
    "recompute may be compared only by itself or joined with `and`, such as "
    "recompute in (none, selective)"
)
_NODES = (ast.BoolOp, ast.UnaryOp, ast.BinOp, ast.Compare, ast.Name, ast.Constant, *LISTS)
_SYMBOLS: dict[type[ast.operator], str] = {ast.Pow: "**", ast.Div: "/"}
_ODD_WORDS = "|".join(
    re.escape(word)
    for word in sorted(WORDS, key=lambda word: (-len(word), word))
    if not word.isidentifier() and not word.isdigit()
)
"""Words that Python would not read as one name."""
_TOKEN = re.compile(rf"\"[^\"]*\"|'[^']*'|(?<![\w:+-])(?:{_ODD_WORDS})(?![\w:+-])")
_SINGLE_EQUALS = re.compile(r"(?<![<>=!])=(?!=)")


@dataclass(frozen=True, kw_only=True)
class Condition:
    """What must hold of a layout: columns in, a mask out.

    Where a comparison divides by zero it is neither true nor false; only what is true holds.
    """

    text: str
    needs: tuple[str, ...]
    needs_job: bool
    """It reads the global batch, so it cannot be asked without a context."""
    formula: Formula = field(compare=False, repr=False)

    def __call__(self, context: Context | None, columns: Columns) -> Mask:
        """Return where the condition is true."""
        with np.errstate(all="ignore"):
            return np.asarray(self.formula(context, columns) == 1.0)


@dataclass(frozen=True, kw_only=True)
class Parsed:
    """An expression in two parts: about columns, and about the layers' activations."""

    condition: Condition | None
    kinds: tuple[frozenset[str], ...]
    """Each leaves these kinds; empty where recomputation is not spoken of."""


def parse_expression(text: str, *, single: bool = False) -> Parsed:
    """Read an expression; ``single`` allows one comparison only.

    Raises ValueError saying what is wrong.
    """
    tree = _tree(text)
    _check_depth(tree)
    _check_nodes(tree)
    _check_names(tree)
    if single and not isinstance(tree, ast.Compare):
        raise ValueError("must be one comparison such as tp<=8; --where takes and, or, not")
    terms = _terms(tree)
    about_kinds = [term for term in terms if RECOMPUTE in _names(term)]
    others = [term for term in terms if RECOMPUTE not in _names(term)]
    kinds = tuple(_kinds(term) for term in about_kinds)
    return Parsed(condition=_condition(text, others) if others else None, kinds=kinds)


def _tree(text: str) -> ast.expr:
    if len(text) > MAX_CONDITION_CHARACTERS:
        raise ValueError(
            f"must be at most {MAX_CONDITION_CHARACTERS} characters; given {len(text)}"
        )
    source = _TOKEN.sub(_quoted, text.strip().lower())
    if _SINGLE_EQUALS.search(source):
        raise ValueError("compare with ==; a single = is for --fix")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return ast.parse(source, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError, Warning):
        raise ValueError("is no condition such as tp*cp <= 8") from None


def _quoted(match: re.Match[str]) -> str:
    return match[0] if match[0][0] in "\"'" else f'"{match[0]}"'


def _check_depth(tree: ast.expr) -> None:
    level: list[ast.AST] = [tree]
    for _ in range(MAX_CONDITION_DEPTH):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        if not level:
            return
    raise ValueError(f"is nested too deeply; at most {MAX_CONDITION_DEPTH} levels are allowed")


def _check_nodes(tree: ast.expr) -> None:
    """Everything formulas are made of, and nothing else; raises ValueError."""
    for node in ast.walk(tree):
        if isinstance(node, ast.expr) and not isinstance(node, _NODES):
            raise ValueError(f"{source_of(node)} cannot be part of a condition; {SHAPE}")
        if isinstance(node, ast.operator) and type(node) not in ARITHMETIC:
            symbol = _SYMBOLS.get(type(node), type(node).__name__)
            raise ValueError(f"{symbol} cannot be computed; {SHAPE}")
        if isinstance(node, ast.unaryop) and not isinstance(node, ast.Not | ast.USub):
            raise ValueError(f"{type(node).__name__} cannot be computed; {SHAPE}")
        if isinstance(node, ast.cmpop) and type(node) not in {*COMPARISONS, ast.In, ast.NotIn}:
            raise ValueError("compare with ==, not with `is`")
        if isinstance(node, ast.Constant):
            _check_constant(node)


def _check_constant(node: ast.Constant) -> None:
    if isinstance(node.value, str):
        return
    if type(node.value) is not int:
        raise ValueError(f"{source_of(node)} is no whole number; {SHAPE}")
    if node.value > MAX_LITERAL:
        raise ValueError(f"numbers must be at most {MAX_LITERAL:,}, not {source_of(node)}")


def _check_names(tree: ast.expr) -> None:
    """Every name is known; what a dimension of words is compared with, it checks itself."""
    known, checked = known_names(), _beside_words(tree)
    unknown = [name for name in _names(tree) if name not in {*known, *WORDS, *checked}]
    if unknown:
        listed = ", ".join(shown(name) for name in unknown)
        raise ValueError(hinted(f"unknown name {listed}", unknown[0], known))


def _beside_words(tree: ast.expr) -> set[str]:
    """Names in comparisons with dimensions of words."""
    worded = {RECOMPUTE, *(name for name, each in DIMENSIONS.items() if each.words)}
    comparisons = [node for node in ast.walk(tree) if isinstance(node, ast.Compare)]
    return {name for each in comparisons if worded & set(_names(each)) for name in _names(each)}


def _names(tree: ast.expr) -> tuple[str, ...]:
    """Every name that is read, aliases in full, each once."""
    found = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]
    return tuple(dict.fromkeys(ALIASES.get(name, name) for name in found))


def _terms(tree: ast.expr) -> list[ast.expr]:
    """What is joined by `and`, at any depth."""
    if isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And):
        return [term for value in tree.values for term in _terms(value)]
    return [tree]


def _kinds(term: ast.expr) -> frozenset[str]:
    """The kinds of layers that a comparison of ``recompute`` leaves."""
    if not isinstance(term, ast.Compare) or len(term.ops) != 1:
        raise ValueError(_ALONE)
    left, operator, right = term.left, term.ops[0], term.comparators[0]
    if isinstance(operator, ast.Eq | ast.NotEq) and source_of(right) == RECOMPUTE:
        left, right = right, left
    if not isinstance(left, ast.Name) or left.id != RECOMPUTE:
        raise ValueError(_ALONE)
    words = words_of(RECOMPUTE, tuple(RECOMPUTE_KINDS), operator, right)
    inverted = isinstance(operator, ast.NotEq | ast.NotIn)
    kept = [word for word in RECOMPUTE_KINDS if (word in words) != inverted]
    return frozenset(kind for word in kept for kind in RECOMPUTE_KINDS[word])


def _condition(text: str, terms: list[ast.expr]) -> Condition:
    names = [name for term in terms for name in _names(term)]
    read = {column for name in names for column in DERIVED.get(name, (name,))}
    formula = all_of([truth_of(term) for term in terms])
    needs = tuple(name for name in DIMENSIONS if name in read)
    if not needs:
        raise ValueError("must name a dimension")
    needs_job = "num_micro_batches" in names
    return Condition(text=text, needs=needs, needs_job=needs_job, formula=formula)
