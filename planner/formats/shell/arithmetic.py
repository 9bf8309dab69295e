"""Sums of whole numbers in shell text."""

import ast
import operator
import re
from collections.abc import Mapping

MAX_SUM = 200
"""Characters of a sum."""
_OPERATIONS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_SAFE = re.compile(rf"[\w\s+\-*/%()${{}}]{{1,{MAX_SUM}}}")
_POSITIONAL = re.compile(r"\$\{?\d")


def evaluated(text: str, values: Mapping[str, str]) -> int | None:
    """The value of a sum; None where it is none, or a variable in it is not known."""
    if not _SAFE.fullmatch(text) or _POSITIONAL.search(text):
        return None
    text = re.sub(r"\$\{(\w+)\}|\$(\w+)", lambda m: m[1] or m[2], text)
    text = re.sub(r"[A-Za-z_]\w*", lambda m: values.get(m[0], m[0]), text)
    if len(text) > MAX_SUM or "**" in text or "//" in text:
        return None
    try:
        return _number(ast.parse(text.strip().replace("/", "//"), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _number(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        operation = _OPERATIONS[type(node.op)]
        number: int = operation(_number(node.left), _number(node.right))
        if abs(number) < 10**15:
            return number
    raise ValueError
