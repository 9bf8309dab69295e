#!/usr/bin/env python3
"""Writes options.csv and config_fields.txt: what Megatron-LM's own parser and config know.

The data files are those of planner/formats/megatron. Needs the [oracles] extra and
scripts/oracles. With --check it only says whether they are up to date.
"""

import argparse
import csv
import dataclasses
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "planner" / "formats" / "megatron"
COLUMNS = ("option", "kind", "nargs", "choices", "dest", "default")
KINDS = {"_StoreTrueAction": "flag", "_StoreFalseAction": "off", "BooleanOptionalAction": "bool"}


def real_parser(megatron: Path) -> argparse.ArgumentParser:
    """The parser Megatron-LM builds before it reads a command line."""
    sys.path.insert(0, str(ROOT / "tests" / "oracles"))
    from megatron_model import prepare

    os.environ.update(RANK="0", WORLD_SIZE="1")
    prepare(megatron)
    from megatron.training.arguments import add_megatron_arguments

    parser = argparse.ArgumentParser(allow_abbrev=False)
    return add_megatron_arguments(parser)


def kind_of(action: argparse.Action) -> str:
    name = type(action).__name__
    if name in KINDS:
        return KINDS[name]
    return action.type.__name__ if action.type in (int, float) else "str"


def rows(parser: argparse.ArgumentParser) -> Iterator[dict[str, Any]]:
    for action in parser._actions:
        for option in action.option_strings:
            if type(action).__name__ == "_HelpAction":
                continue
            kind = kind_of(action)
            choices = [getattr(choice, "name", choice) for choice in action.choices or ()]
            default = "" if kind in KINDS.values() else action.default
            is_plain = isinstance(default, (int, float, str))
            yield {
                "option": option,
                "kind": kind,
                "nargs": "" if action.nargs in (None, 0) else action.nargs,
                "choices": " ".join(map(str, choices)),
                "dest": action.dest,
                "default": default if is_plain else "",
            }


def options_text(megatron: Path) -> str:
    """The content of options.csv, in order of the options' names."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(sorted(rows(real_parser(megatron)), key=lambda row: str(row["option"])))
    return text.getvalue()


def fields_text(megatron: Path) -> str:
    """Fields of the model's configuration that no option sets, one a line."""
    dests = {action.dest for action in real_parser(megatron)._actions}
    from megatron.core.transformer import MLATransformerConfig

    names = {field.name for field in dataclasses.fields(MLATransformerConfig)}
    return "".join(f"{name}\n" for name in sorted(names - dests))


def texts(megatron: Path) -> dict[str, str]:
    """The data files by name."""
    return {"options.csv": options_text(megatron), "config_fields.txt": fields_text(megatron)}


def main() -> int:
    megatron = Path(os.environ.get("MEGATRON_PATH") or ROOT / ".oracles")
    found = texts(megatron)
    if "--check" in sys.argv[1:]:
        return int(any((FOLDER / name).read_text("utf-8") != text for name, text in found.items()))
    for name, text in found.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
