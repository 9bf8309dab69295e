"""Names of models: the catalog's, and what else people call them."""

import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from planner.catalog.paths import models_dir
from planner.documents.yaml_text import load_yaml

_ENDINGS = re.compile(
    r"-(instruct|chat|base|hf|it|sft|dpo|v[01]\.[0-9]|[0-9]{4}|bf16|fp8|full|pt|thinking)$"
)
"""Of a checkpoint's training and date, which leave the architecture as it is."""


def list_models() -> list[str]:
    """Return the names in the catalog, sorted; no file is opened."""
    return sorted(path.stem for path in models_dir().glob("*.yaml"))


def catalog_name(name: str) -> str | None:
    """The only model of the catalog that a name can mean; None where there is none.

    ``meta-llama/Llama-3.1-8B-Instruct`` is llama3.1-8b: the owner, case, hyphens, blanks and the
    ending of a checkpoint do not count.
    """
    known = _spellings()
    text = name.rstrip("/").rpartition("/")[2].lower().removeprefix("meta-")
    while _plain(text) not in known:
        shorter = _ENDINGS.sub("", text)
        if shorter == text:
            return None
        text = shorter
    return known[_plain(text)]


@cache
def _spellings() -> Mapping[str, str]:
    path = models_dir() / "names" / "hugging_face.yaml"
    named = {_plain(name): str(model) for name, model in load_yaml(path).items()}
    return named | {_plain(each): each for each in list_models()}


def _plain(name: str) -> str:
    return re.sub(r"[-_ ]", "", name.lower())


def cached_config(name: str) -> Path | None:
    """The newest ``config.json`` of ``owner/name`` in the hub's cache on this machine.

    Nothing is fetched. Source: huggingface_hub, constants.py and file_download.py
    (``models--owner--name/snapshots/REVISION``).
    """
    home = os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface"
    cache = Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub")
    folder = cache / f"models--{name.replace('/', '--')}" / "snapshots"
    found = [path for path in folder.glob("*/config.json") if path.is_file()]
    return max(found, key=lambda path: path.stat().st_mtime, default=None)
