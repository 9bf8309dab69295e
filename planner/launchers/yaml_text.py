"""YAML for people to read: keys in the order given, scripts as literal blocks."""

from typing import Any

import yaml


class _Dumper(yaml.SafeDumper):
    """Writes text of several lines as a literal block."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


def yaml_text(content: dict[str, Any]) -> str:
    """Return the document as text."""
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
