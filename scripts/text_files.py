"""Exits 1 where a named file does not end with one newline, or is YAML that cannot be read."""

import sys
from pathlib import Path

import yaml

YAML = (".yaml", ".yml")


def problem(path: Path) -> str:
    """What is wrong with the file, or nothing."""
    text = path.read_bytes()
    if text and (not text.endswith(b"\n") or text.endswith(b"\n\n")):
        return "does not end with one newline"
    if path.suffix in YAML:
        try:
            list(yaml.compose_all(text))
        except yaml.YAMLError as error:
            return str(error)
    return ""


if __name__ == "__main__":
    found = [f"{name}: {why}" for name in sys.argv[1:] if (why := problem(Path(name)))]
    print(*found, sep="\n", end="\n" if found else "")
    sys.exit(bool(found))
