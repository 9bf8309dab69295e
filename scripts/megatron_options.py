#!/usr/bin/env python3
"""Writes planner/formats/megatron/schema.json: what Megatron-LM's own parser and config know.

With every attribute stand the options that set it.
Needs the [oracles] extra and scripts/oracles. With --check it only says whether it is up to date.
"""

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "planner" / "formats" / "megatron" / "schema.json"
SWITCHES = {
    "_StoreTrueAction": (True,),
    "_StoreFalseAction": (False,),
    "BooleanOptionalAction": (True, False),
}
"""What the names of such an option set in turn; further names set what the last of these does."""
TYPES: Mapping[object, str] = {int: "integer", float: "number", str: "string", None: "string"}
"""By what the parser converts a word with; a function of its own may take anything."""


def real_parser(megatron: Path) -> argparse.ArgumentParser:
    """The parser Megatron-LM builds before it reads a command line."""
    sys.path.insert(0, str(ROOT / "tests" / "oracles"))
    from megatron_model import prepare

    os.environ.update(RANK="0", WORLD_SIZE="1")
    prepare(megatron)
    from megatron.training.arguments import add_megatron_arguments

    parser = argparse.ArgumentParser(allow_abbrev=False)
    return add_megatron_arguments(parser)


def entry_of(action: argparse.Action) -> dict[str, Any]:
    """The schema of the attribute that an option sets; null leaves it as it is."""
    if type(action).__name__ in SWITCHES:
        return {"type": ["boolean", "null"]}
    is_one = action.nargs in (None, 0)
    has_default = isinstance(action.default, int | float | str)
    kind = TYPES.get(action.type)
    entry: dict[str, Any] = {}
    if kind:
        entry["type"] = [kind, "null"] if is_one else kind
    if action.choices:
        choices = [getattr(choice, "name", choice) for choice in action.choices]
        entry["enum"] = [*choices, None] if is_one else choices
    if not is_one:
        alone = [kind] if kind and has_default else []
        entry = {"type": ["array", *alone, "null"], "items": entry} | count_of(action.nargs)
    return entry | ({"default": action.default} if has_default else {})


def count_of(nargs: int | str | None) -> dict[str, int]:
    """How many values an option takes."""
    if isinstance(nargs, int):
        return {"minItems": nargs, "maxItems": nargs}
    return {"minItems": 1} if nargs == "+" else {}


def options_of(action: argparse.Action) -> dict[str, Any]:
    """The names of an option, each with what it sets; null: what is given after it."""
    values = SWITCHES.get(type(action).__name__, (None,))
    names = action.option_strings
    return dict(zip(names, (*values, *values[-1:] * len(names)), strict=False))


def settings(parser: argparse.ArgumentParser) -> dict[str, dict[str, Any]]:
    """Schemas of all attributes that options set, by name, each with its options."""
    found: dict[str, dict[str, Any]] = {}
    for action in parser._actions:
        if type(action).__name__ == "_HelpAction" or not action.option_strings:
            continue
        entry = found.setdefault(action.dest, entry_of(action) | {"options": {}})
        assert entry.get("type") == entry_of(action).get("type"), action.dest
        entry["options"] |= options_of(action)
    return found


def schema_text(megatron: Path) -> str:
    """The content of schema.json: one attribute a line, in order of their names."""
    known = settings(real_parser(megatron))
    from megatron.core.transformer import MLATransformerConfig

    known |= {
        one.name: {} for one in dataclasses.fields(MLATransformerConfig) if one.name not in known
    }
    lines = ",\n".join(f'  "{name}": {json.dumps(known[name])}' for name in sorted(known))
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Megatron-LM 0.19.2: attributes and the options that set them",
        "type": "object",
        "properties": {},
    }
    return json.dumps(head, indent=1).replace("{}", f"{{\n{lines}\n }}") + "\n"


def main() -> int:
    text = schema_text(Path(os.environ.get("MEGATRON_PATH") or ROOT / ".oracles"))
    if "--check" in sys.argv[1:]:
        return int(TARGET.read_text(encoding="utf-8") != text)
    TARGET.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
