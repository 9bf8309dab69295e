"""YAML files that hold Megatron-LM's options by name under ``MODEL_ARGS``.

Source: tests/functional_tests/shell_test_utils/_run_training.sh of Megatron-LM, which makes a
command line of them: ``true`` is an option alone, ``false`` is none, a list is several words.
"""

import re
from collections.abc import Iterator

from planner.documents.yaml_text import Node, compose
from planner.formats.format import SourceText
from planner.formats.megatron.options import load_options
from planner.formats.shell.word import Word

OPTIONS = "MODEL_ARGS"
ENVIRONMENT = "ENV_VARS"
_RECOGNISED = re.compile(rf"(?m)^{OPTIONS}:[^\n]*$(?=(?:\n[ \t]*(?:#[^\n]*)?$)*\n[ \t]+['\"]?--)")


def is_model_args(text: str) -> bool:
    """Whether a text has options under ``MODEL_ARGS`` at its left margin."""
    return _RECOGNISED.search(text) is not None


def model_args(source: SourceText) -> tuple[tuple[Word, ...], dict[str, Word]]:
    """The words of all options, and the environment; raises InputError where it is no YAML."""
    root = compose(source.path, source.text)
    words = tuple(
        word for key, value in _pairs(root, OPTIONS) for word in _words(key, value.resolved)
    )
    environment = {
        key.text: _word(value.resolved, value.resolved.text)
        for key, value in _pairs(root, ENVIRONMENT)
        if value.resolved.kind == "scalar"
    }
    return words, environment


def _pairs(root: Node | None, section: str) -> Iterator[tuple[Node, Node]]:
    for key, value in root.resolved.pairs if root else ():
        if key.text == section:
            yield from value.resolved.pairs


def _words(key: Node, value: Node) -> Iterator[Word]:
    if value.kind == "scalar" and value.text == "false":
        return
    yield _word(key, key.text)
    option = load_options().get(key.text)
    if value.kind == "sequence":
        for item in value.items:
            yield from (_word(item, text) for text in item.resolved.text.split())
    elif value.kind == "scalar" and value.text not in ("true", ""):
        inner = value.text.strip()
        is_list = inner.startswith("[") and inner.endswith("]")
        takes_several = option is not None and option.nargs
        texts = inner.strip("[]").split() if is_list or takes_several else [inner]
        yield from (_word(value, text) for text in texts)


def _word(node: Node, text: str) -> Word:
    return Word.at(text, (node.start, node.end))
