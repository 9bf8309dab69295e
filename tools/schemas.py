"""JSON Schemas of the documents, made of ``tools/schemas/*.yaml``, and tables of their fields.

In those files a field is ``TYPE (UNIT), what it is``:

- TYPE is string, integer, number, boolean, any; words with bars between them; ``$part``, one of
  parts.yaml; ``list of TYPE``; ``map of TYPE``, by names. ``TYPE?`` may be null too.
- A mapping in place of a text is an object. Its key ``.as`` says list, map or nullable; ``.about``
  what it is; ``.extends`` the part, ``.class`` the dataclass (module:Name) whose fields it has
  first; ``.without`` which of those it has not.
- ``name?`` is a field that may be missing. All others are always there, and no other is.
"""

import ast
import importlib
import inspect
import json
import re
import textwrap
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

from planner.spec.decision import Decision
from tools.pages import ROOT

SOURCES = ROOT / "tools" / "schemas"
TARGET = ROOT / "planner" / "report" / "schemas"
DIALECT = "https://json-schema.org/draft/2020-12/schema"
PARTS = "parts"
FILES = ("plans", "layouts", "files", "runs", "catalog")
"""In the order of the page."""
EXTENDS = "fields of "
FIELD = re.compile(r"(?P<type>[^(,]+?)(?: \((?P<unit>[^)]+)\))?(?:, (?P<about>.+))?", re.DOTALL)
PLAIN = {"string", "integer", "number", "boolean"}
OF_TYPE = {int: "integer", float: "number", str: "string", bool: "boolean"}
UNITS = {"_bytes": "bytes", "_s": "s", "_gib": "GiB", "_percent": "percent"}
"""By the end of a dataclass's field."""
Schema = dict[str, Any]


@cache
def sources() -> dict[str, Schema]:
    """What the files say of every document and of ``parts``."""
    found: dict[str, Schema] = {}
    for name in FILES:
        found |= yaml.safe_load((SOURCES / f"{name}.yaml").read_text("utf-8"))
    return found | {PARTS: yaml.safe_load((SOURCES / f"{PARTS}.yaml").read_text("utf-8"))}


def kinds() -> list[str]:
    """Documents in the order of the files."""
    return [name for name in sources() if name != PARTS]


def schema_of(kind: str) -> Schema:
    """The whole JSON Schema of a document."""
    stated = sources()[kind]
    head = {
        "schema": {"const": kind, "description": "kind of document: `planner schema` has them"},
        "schema_version": {
            "const": stated["version"],
            "description": "changes when a field changes its meaning or goes",
        },
        "planner_version": {"type": "string"},
    }
    body = _object(stated["fields"])
    return {
        "$schema": DIALECT,
        "$id": f"urn:planner:{kind}:{stated['version']}",
        "title": stated["command"],
        "description": stated["about"],
        **_closed({**head, **body["properties"]}, [*head, *body["required"]]),
        "$defs": {name: _object(sources()[PARTS][name]) for name in sorted(_used(body))},
    }


def _used(schema: Any) -> set[str]:  # noqa: ANN401 - any part of a schema
    """Parts that a schema refers to, and those that they refer to."""
    names = set(re.findall(r'"#/\$defs/(\w+)"', json.dumps(schema)))
    return names.union(*(_used(_object(sources()[PARTS][name])) for name in names))


def _closed(properties: Schema, required: list[str]) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _object(stated: Mapping[str, Any]) -> Schema:
    """An object of the notation above."""
    properties: Schema = {}
    required: list[str] = []
    for whole in (_of_part(stated.get(".extends", "")), _of_class(stated.get(".class", ""))):
        properties |= whole.get("properties", {})
        required += whole.get("required", [])
    for name in stated.get(".without", ()):
        del properties[name]
        required.remove(name)
    for key, value in stated.items():
        if key.startswith("."):
            continue
        name = key.removesuffix("?")
        properties[name] = field_of(value)
        required += [name] if name == key and name not in required else []
    made = _closed(properties, required)
    if ".extends" in stated:
        made = {"$comment": EXTENDS + stated[".extends"]} | made
    about = {"description": stated[".about"]} if ".about" in stated else {}
    match stated.get(".as"):
        case "list":
            return {"type": "array", "items": made} | about
        case "map":
            return {"type": "object", "additionalProperties": made} | about
        case "nullable":
            return made | {"type": ["object", "null"]} | about
    return made | about


def _of_part(name: str) -> Schema:
    return _object(sources()[PARTS][name]) if name else {}


def field_of(stated: str | Mapping[str, Any]) -> Schema:
    """The schema of a field as it is stated."""
    if isinstance(stated, Mapping):
        return _object(stated)
    match = FIELD.fullmatch(stated.strip())
    if match is None:
        raise ValueError(f"no field: {stated}")
    made = _type(match["type"].strip())
    texts = {"unit": match["unit"], "description": match["about"]}
    return made | {name: text for name, text in texts.items() if text}


def _type(text: str) -> Schema:
    if text.endswith("?"):
        return _nullable(_type(text[:-1]))
    if text.startswith("list of "):
        return {"type": "array", "items": _type(text.removeprefix("list of "))}
    if text.startswith("map of "):
        return {"type": "object", "additionalProperties": _type(text.removeprefix("map of "))}
    if text.startswith("$"):
        return {"$ref": f"#/$defs/{text[1:]}"}
    if "|" in text:
        return {"enum": [word.strip() for word in text.split("|")]}
    if text == "any":
        return {}
    if text not in PLAIN:
        raise ValueError(f"no type: {text}")
    return {"type": text}


def _nullable(schema: Schema) -> Schema:
    if "type" in schema:
        return schema | {"type": [schema["type"], "null"]}
    if "enum" in schema:
        return schema | {"enum": [*schema["enum"], None]}
    return {"anyOf": [schema, {"type": "null"}]}


def _of_class(place: str) -> Schema:
    """The object that ``asdict`` makes of a dataclass; docstrings of fields say what they are."""
    if not place:
        return {}
    module, _, name = place.partition(":")
    return _of_dataclass(getattr(importlib.import_module(module), name))


def _of_dataclass(cls: type) -> Schema:
    hints = get_type_hints(cls, include_extras=True)
    said = _docstrings(cls)
    made = {}
    for field in fields(cls):
        unit = next((unit for end, unit in UNITS.items() if field.name.endswith(end)), None)
        texts = {"unit": unit, "description": said.get(field.name)}
        known = of_hint(hints[field.name])
        made[field.name] = known | {name: text for name, text in texts.items() if text}
    return _closed(made, list(made))


def of_hint(hint: Any) -> Schema:  # noqa: ANN401 - any annotation
    """The schema of what `asdict` makes of a value of this type; TypeError where there is none."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated and isinstance(hint.__metadata__[0], Decision):
        return _of_decision(inner[0], hint.__metadata__[0])
    if origin is Annotated:
        return of_hint(inner[0])
    if hint in OF_TYPE:
        return {"type": OF_TYPE[hint]}
    if is_dataclass(hint) and isinstance(hint, type):
        return _of_dataclass(hint)
    if origin is Literal:
        return {"enum": list(inner)}
    if origin in (Union, types.UnionType):
        (one,) = (each for each in inner if each is not type(None))
        return _nullable(of_hint(one))
    if origin in (tuple, list) and inner[-1:] != () and inner[1:] in ((), (...,)):
        return {"type": "array", "items": of_hint(inner[0])}
    if inner[:1] == (str,):
        return {"type": "object", "additionalProperties": of_hint(inner[1])}
    raise TypeError(f"no JSON of {hint}")


def _of_decision(hint: Any, decision: Decision) -> Schema:  # noqa: ANN401 - any annotation
    known = of_hint(decision.value_type if isinstance(hint, TypeVar) else hint)
    words = {"enum": list(decision.words)} if decision.words else {}
    return known | words | {"description": decision.about}


def _docstrings(cls: type) -> dict[str, str]:
    """The texts behind the fields of a dataclass and of those it inherits from."""
    found: dict[str, str] = {}
    for each in (one for one in reversed(cls.__mro__) if is_dataclass(one)):
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(each))).body
        assert isinstance(body, ast.ClassDef)
        for line, text in zip(body.body, body.body[1:], strict=False):
            match line, text:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(words))),
                ):
                    found[name] = _phrase(words)
    return found


def _phrase(text: str) -> str:
    """A docstring as the other descriptions are written."""
    text = " ".join(text.replace("``", "`").split()).removesuffix(".")
    return text[0].lower() + text[1:] if text[1:2].islower() or text[1:2] == " " else text


@cache
def files() -> dict[Path, str]:
    """Every schema by its place in the package."""
    made = {kind: schema_of(kind) for kind in kinds()}
    return {
        TARGET / f"{kind}.json": json.dumps(schema, indent=1, ensure_ascii=False) + "\n"
        for kind, schema in made.items()
    }


Row = tuple[str, str, str]
"""Path of a field, unit, meaning."""


def _rows(schema: Schema, path: str = "") -> Iterator[Row]:
    """Every field, objects before what is in them; fields of a part stand with the part."""
    known = _of_part(_extended(schema)).get("properties", {})
    for name, field in schema.get("properties", {}).items():
        if name not in known:
            at = f"{path}.{name}" if path else name
            yield from _row(field, at, may_miss=name not in schema["required"])


def _extended(schema: Schema) -> str:
    return str(schema.get("$comment", "")).removeprefix(EXTENDS)


def _row(field: Schema, at: str, *, may_miss: bool) -> Iterator[Row]:
    inner = field
    while "properties" not in inner:
        if inner.get("type") == "array":
            inner, at = inner["items"], f"{at}[]"
        elif isinstance(inner.get("additionalProperties"), dict):
            inner, at = inner["additionalProperties"], f"{at}.NAME"
        else:
            break
    one = next((each for each in inner.get("anyOf", ()) if "$ref" in each), inner)
    part = one.get("$ref", "").rpartition("/")[2]
    words = ", ".join(f"`{word}`" for word in inner.get("enum", ()) if word is not None)
    about = field.get("description", "")
    more = [
        f"{EXTENDS}{_link(_extended(inner))}" if _extended(inner) else _link(part),
        "or null" if _may_be_null(field) and "null" not in about else "",
        "not always there" if may_miss else "",
    ]
    said = "; ".join(filter(None, [about, words, *more]))
    if said or "properties" not in inner:
        yield f"`{at}`", field.get("unit", ""), said
    yield from _rows(inner, at)


def _link(part: str) -> str:
    return f"[{part.replace('_', ' ')}](#{part.replace('_', '-')})" if part else ""


def _may_be_null(field: Schema) -> bool:
    kind = field.get("type", ())
    return (
        (isinstance(kind, list) and "null" in kind)
        or None in field.get("enum", ())
        or {"type": "null"} in field.get("anyOf", ())
    )


def _joined(rows: Iterable[Row]) -> Iterator[Row]:
    """Neighbours of which the same is said in one row."""
    for (_, unit, said), group in groupby(rows, lambda row: (_above(row[0]), *row[1:])):
        first, *others = [row[0] for row in group]
        short = [f"`{name.strip('`').rpartition('.')[2]}`" for name in others]
        yield ", ".join([first, *short]), unit, said


def _above(path: str) -> str:
    return path.strip("`").rpartition(".")[0]


def _table(schema: Schema) -> str:
    rows = _joined(_rows(schema))
    lines = [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows]
    return "\n".join(["| field | unit | meaning |", "|---|---|---|", *lines])


def documents_section() -> str:
    """Every document with the table of its fields, and those of the parts that they share."""
    found = []
    for kind in kinds():
        schema = schema_of(kind)
        version = sources()[kind]["version"]
        file = f"[`{kind}`](../planner/report/schemas/{kind}.json)"
        body = _object(sources()[kind]["fields"])
        found += [
            f"## `{schema['title']}`",
            f"{schema['description']} Kind {file}, version {version}.",
            *([f"It has the {EXTENDS}{_link(part)}."] if (part := _extended(body)) else []),
            *([_table(body)] if list(_rows(body)) else []),
        ]
    found.append("## Parts\n\nWhat documents share.")
    for name in sources()[PARTS]:
        found += [f"### {name.replace('_', ' ')}", _table(_of_part(name))]
    return "\n\n".join(found)
