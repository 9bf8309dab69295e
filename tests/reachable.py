"""Which definitions of a package nothing reaches, by the names in its source.

A definition is a function, class, method or constant of a module. What stands outside any
definition is reached, and so is what the roots name; what a reached definition names is reached.
A bare name means what its module binds it to; an attribute means every method of that name, and
what an imported module holds under it; a text of dotted names (``getattr``) means methods. That is
lenient: what is listed is dead, what is not listed may still be.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

PLAIN = {
    "abstractmethod",
    "cache",
    "cached_property",
    "classmethod",
    "contextmanager",
    "dataclass",
    "lru_cache",
    "override",
    "property",
    "runtime_checkable",
    "staticmethod",
}
"""Decorators that register nothing; any other makes what it decorates reached with its scope."""
DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
Name = tuple[str, str]
"""A module and what it defines, or "" and the name of a method."""
Defining = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True, kw_only=True)
class Definition:
    """What is defined where, and the names its reaching reaches."""

    module: str
    label: str
    line: int
    keys: tuple[Name, ...]
    uses: frozenset[Name]

    def __str__(self) -> str:
        """Module, line and name, to be found and listed as an exception."""
        return f"{self.module}:{self.label}"


class Source:
    """The definitions of one file, and what it names outside them."""

    def __init__(self, module: str, text: str, *, is_package: bool = False) -> None:
        self.module = module
        self.is_package = is_package
        self.tree = ast.parse(text)
        self.bound = dict(self._imports())
        self.definitions: list[Definition] = []
        self.outside = self._walk(self.tree.body, scope="")

    def _imports(self) -> Iterator[tuple[str, Name]]:
        package = self.module.split(".")
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield alias.asname or alias.name.partition(".")[0], (alias.name, "")
            elif isinstance(node, ast.ImportFrom):
                depth = len(package) - node.level + self.is_package
                stem = [*package[:depth]] if node.level else []
                where = ".".join([*stem, *filter(None, [node.module])])
                for alias in node.names:
                    yield alias.asname or alias.name, (where, alias.name)

    def _walk(self, body: Iterable[ast.stmt], scope: str) -> frozenset[Name]:
        """File the definitions of a body; what the rest of it names."""
        rest: set[Name] = set()
        for node in body:
            names = () if scope else _targets(node)
            if isinstance(node, Defining):
                rest |= self._define(node, scope)
            elif names and not all(map(_is_dunder, names)):
                keys = tuple((self.module, name) for name in names)
                self._file(node, names[0], keys, self._uses(node))
            elif not isinstance(node, ast.Import | ast.ImportFrom):
                rest |= self._uses(node)
        return frozenset(rest)

    def _define(self, node: Defining, scope: str) -> frozenset[Name]:
        """File a function or class; its keys where its decorators or its name make it reached."""
        label = f"{scope}.{node.name}" if scope else node.name
        key = ("", node.name) if scope else (self.module, node.name)
        if isinstance(node, ast.ClassDef):
            uses = self._walk(node.body, label)
            for part in (*node.bases, *node.keywords, *node.decorator_list):
                uses |= self._uses(part)
        else:
            uses = self._uses(node)
        self._file(node, label, (key, (self.module, label)), uses)
        registered = any(_name_of(one) not in PLAIN for one in node.decorator_list)
        always = registered or (scope and _is_dunder(node.name))
        return frozenset({(self.module, label)} if always else ())

    def _file(
        self, node: ast.AST, label: str, keys: tuple[Name, ...], uses: frozenset[Name]
    ) -> None:
        self.definitions.append(
            Definition(
                module=self.module,
                label=label,
                line=getattr(node, "lineno", 0),
                keys=keys,
                uses=uses - set(keys),
            )
        )

    def _uses(self, node: ast.AST) -> frozenset[Name]:
        found: set[Name] = set()
        for part in ast.walk(node):
            if isinstance(part, ast.Name):
                found.add(self.bound.get(part.id, (self.module, part.id)))
            elif isinstance(part, ast.Attribute):
                found.add(("", part.attr))
                if isinstance(part.value, ast.Name) and part.value.id in self.bound:
                    where, name = self.bound[part.value.id]
                    found.add((f"{where}.{name}".rstrip("."), part.attr))
            elif isinstance(part, ast.Constant) and DOTTED.fullmatch(str(part.value)):
                found |= {("", name) for name in str(part.value).split(".")}
        return frozenset(found)


def _targets(node: ast.stmt) -> tuple[str, ...]:
    """Names of constants that a statement of a module assigns."""
    targets = node.targets if isinstance(node, ast.Assign) else ()
    if isinstance(node, ast.AnnAssign):
        targets = (node.target,)
    return tuple(target.id for target in targets if isinstance(target, ast.Name))


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _name_of(decorator: ast.expr) -> str:
    if isinstance(decorator, ast.Call):
        return _name_of(decorator.func)
    return decorator.attr if isinstance(decorator, ast.Attribute) else getattr(decorator, "id", "")


def unreached(sources: Iterable[Source], roots: Iterable[Name]) -> list[Definition]:
    """Definitions that neither the roots nor code outside definitions lead to."""
    sources = list(sources)
    by_key: dict[Name, list[Definition]] = {}
    for one in (one for source in sources for one in source.definitions):
        for key in one.keys:
            by_key.setdefault(key, []).append(one)
    bound = {(source.module, name): to for source in sources for name, to in source.bound.items()}
    todo = [*roots, *(name for source in sources for name in source.outside)]
    seen: set[Name] = set()
    reached: set[int] = set()
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        if name not in by_key and name in bound:
            todo.append(bound[name])
        for one in by_key.get(name, ()):
            reached.add(id(one))
            todo += one.uses
    return [one for s in sources for one in s.definitions if id(one) not in reached]


def read_package(folder: Path) -> list[Source]:
    """Every module under a package's folder."""
    found = []
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder.parent).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        module = ".".join(parts[:-1] if is_package else parts)
        found.append(Source(module, path.read_text("utf-8"), is_package=is_package))
    return found
