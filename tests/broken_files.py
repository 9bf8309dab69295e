"""Configuration files of every format that do not fit, have illegal degrees, or batches that do
not divide, for llama3-8b on 2xdgx-h100; each with keys and comments that are not planner's."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

MODEL, CLUSTER = "llama3-8b", "2xdgx-h100"
TABLE = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))


@dataclass(frozen=True, kw_only=True)
class BrokenFile:
    """A file, the options it needs, and what of it no repair may touch."""

    name: str
    text: str
    foreign: tuple[str, ...]
    options: tuple[str, ...] = ()


def _file(case: dict[str, Any]) -> BrokenFile:
    file = TABLE["files"][case["of"]]
    text = file["text"]
    for name, value in case["values"].items():
        text = text.replace(name, str(value))
    options = tuple(case.get("options", "").split())
    return BrokenFile(name=file["name"], text=text, foreign=tuple(file["kept"]), options=options)


BROKEN = {name: _file(case) for name, case in TABLE["cases"].items()}
