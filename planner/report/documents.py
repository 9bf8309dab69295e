"""The JSON documents of all commands: their common head, and the schemas of what is in them.

``schemas/NAME.json`` is made by ``python -m tools.docs`` from ``tools/schemas/``.
"""

import json
from collections.abc import Mapping
from importlib import resources
from typing import Any

from planner import __version__
from planner.errors import InputError
from planner.spelling import did_you_mean

_FOLDER = resources.files("planner.report").joinpath("schemas")


def schema_names() -> list[str]:
    """Kinds of documents, sorted."""
    files = (path.name for path in _FOLDER.iterdir())
    return sorted(name.removesuffix(".json") for name in files if name.endswith(".json"))


def schema_text(kind: str) -> str:
    """The JSON Schema (draft 2020-12) of a kind of document; raises InputError."""
    known = schema_names()
    if kind not in known:
        hint = did_you_mean(kind, known) or f"known are {', '.join(known)}"
        raise InputError.single("command line", "NAME", f"no document {kind!r}; {hint}")
    return _FOLDER.joinpath(f"{kind}.json").read_text(encoding="utf-8")


def schema_commands() -> dict[str, str]:
    """The command that writes a document, by kind."""
    return {kind: str(json.loads(schema_text(kind))["title"]) for kind in schema_names()}


def document(kind: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """A document as plain data: what it is, by which schema, of which release, and its body."""
    schema = json.loads(schema_text(kind))
    return {
        "schema": kind,
        "schema_version": schema["properties"]["schema_version"]["const"],
        "planner_version": __version__,
        **body,
    }


def render(kind: str, body: Mapping[str, Any]) -> str:
    """A document as indented JSON."""
    return json.dumps(document(kind, body), indent=2, allow_nan=False)
