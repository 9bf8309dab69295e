"""Answers of cells by their keys: a folder of small files that only grows."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

from planner.errors import InputError
from planner.sweep.cells import Row

OPTION = "--cells"


@dataclass(frozen=True, kw_only=True)
class Store:
    """A folder that holds every answer under its key, whole or not at all."""

    folder: Path

    def open(self) -> None:
        """Make the folder; raises InputError where it cannot be."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError) as error:
            message = f"no folder can be made there: {error}"
            raise InputError.single(str(self.folder), OPTION, message) from None

    def get(self, key: str) -> Row | None:
        """The answer; None where there is none, or none that can be read."""
        try:
            found = json.loads(self._path(key).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return found if isinstance(found, dict) and "status" in found else None

    def put(self, key: str, row: Row) -> None:
        """Keep an answer: written beside its place, then renamed into it."""
        path = self._path(key)
        beside = path.with_suffix(f".{os.getpid()}.part")
        try:
            path.parent.mkdir(exist_ok=True)
            beside.write_text(json.dumps(row, allow_nan=False), encoding="utf-8")
            beside.replace(path)
        except OSError as error:
            raise InputError.single(str(path), OPTION, f"cannot be written: {error}") from None

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"
