"""Fields of a strategy, policies of layers and objectives are each listed in one place."""

import ast
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

from planner.plans.objectives import OBJECTIVES
from planner.spec.strategy import COUNTS, FIELDS

PACKAGE = Path(__file__).parents[2] / "planner"
MOST = 7
"""Names of fields that one definition outside planner/spec may list."""
OTHERS = {
    ("catalog/recipes.py", "Recipe"): "columns of hwdb/recipes, which vendors state",
    ("validation/records.py", "Parallel"): "keys of published records",
}
"""Classes whose names are those of other people's data."""


def _named(node: ast.AST) -> Iterator[str]:
    """Names that a part of a definition lists; calls inside are definitions of their own."""
    match node:
        case ast.Constant(value=str(name)):
            yield name
        case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
            for part in parts:
                yield from _named(part)
        case ast.Starred(value=ast.Call() as call):
            yield from _names(call)
        case ast.Starred(value=inner):
            yield from _named(inner)
        case ast.Dict(keys=keys, values=values):
            for key, value in zip(keys, values, strict=True):
                yield from _named(key or ast.Starred(value=value))


def _names(node: ast.AST) -> Iterator[str]:
    """Names that a literal, a call with its keywords, or the body of a class lists."""
    match node:
        case ast.ClassDef(body=body):
            for line in body:
                targets = line.targets if isinstance(line, ast.Assign) else [line]
                bare = (
                    each.target if isinstance(each, ast.AnnAssign) else each for each in targets
                )
                yield from (each.id for each in bare if isinstance(each, ast.Name))
        case ast.Call(args=arguments, keywords=keywords):
            for argument in arguments:
                yield from _named(argument)
            for keyword in keywords:
                yield from [keyword.arg] if keyword.arg else _named(ast.Starred(keyword.value))
        case _:
            yield from _named(node)


def listed(
    source: str, names: Collection[str] = FIELDS, most: int = MOST
) -> list[tuple[str, int, list[str]]]:
    """Definitions that list more than ``most`` of the names: class or kind, line and names."""
    known = {name for name in names if name in source}
    found: list[tuple[str, int, list[str]]] = []
    if len(known) <= most:
        return found
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.expr | ast.ClassDef):
            continue
        used = sorted(known & set(_names(node)))
        if len(used) > most:
            found.append((getattr(node, "name", type(node).__name__), node.lineno, used))
    return found


def test_fields_of_a_strategy_are_listed_in_the_spec_only() -> None:
    wrong = []
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if name.startswith("spec/"):
            continue
        for what, line, names in listed(path.read_text()):
            if (name, what) not in OTHERS:
                wrong.append(f"{name}:{line} {what}: {', '.join(names)}")
    assert not wrong, "derive these from planner.spec.strategy: " + "; ".join(wrong)


def test_the_spec_itself_lists_them() -> None:
    assert listed((PACKAGE / "spec/strategy.py").read_text())


@pytest.mark.parametrize(
    ("names", "most", "home"),
    [(COUNTS, 1, "spec/strategy.py"), (OBJECTIVES, 3, "plans/objectives.py")],
)
def test_policies_and_objectives_are_listed_in_one_module(
    names: Collection[str], most: int, home: str
) -> None:
    found = [
        path.relative_to(PACKAGE).as_posix()
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.relative_to(PACKAGE).parts[0] != "formats" and listed(path.read_text(), names, most)
    ]
    assert found == [home]


@pytest.mark.parametrize(
    "source",
    [
        "X = ({})",
        "X = [{}]",
        "X = {{{}}}",
        "X = (*({}), 'other')",
        "X = dict.fromkeys(({}))",
    ],
)
@pytest.mark.parametrize(("number", "is_found"), [(MOST, False), (MOST + 1, True)])
def test_a_literal_of_names_is_found(source: str, number: int, *, is_found: bool) -> None:
    names = ", ".join(repr(name) for name in list(FIELDS)[:number])
    assert bool(listed(source.format(names))) == is_found


@pytest.mark.parametrize(
    ("line", "begin", "end"),
    [
        ("'{}': 1, ", "X = {", "}"),
        ("{}=1, ", "f(", ")"),
        ("'{}': 1, ", "f(**{", "})"),
        ("    {}: int\n", "class X:\n", ""),
        ("    {} = 1\n", "class X:\n", ""),
    ],
)
@pytest.mark.parametrize(("number", "is_found"), [(MOST, False), (MOST + 1, True)])
def test_keys_keywords_and_class_bodies_are_found(
    line: str, begin: str, end: str, number: int, *, is_found: bool
) -> None:
    body = "".join(line.format(name) for name in list(FIELDS)[:number])
    assert bool(listed(begin + body + end)) == is_found


def test_a_class_of_other_people_s_names_still_exists() -> None:
    for path, name in OTHERS:
        found = [what for what, _, _ in listed((PACKAGE / path).read_text())]
        assert found == [name]
