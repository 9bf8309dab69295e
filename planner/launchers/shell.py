"""Words and checks of bash scripts."""

import re
import shlex
from collections.abc import Iterable, Mapping

from planner.formats.format import OpenKey

LAUNCH_VARIABLES = ("NNODES", "NPROC_PER_NODE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
"""What every script sets before it starts the processes; words may use them in braces."""
SCRIPT = "launch.sh"
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def quoted(word: str) -> str:
    """Quote a word for bash: ``${NAME}`` is replaced when the script runs, all else is literal."""
    parts = _VARIABLE.split(word)
    literals, names = parts[::2], parts[1::2]
    if not names:
        return shlex.quote(word)
    pieces = [shlex.quote(literals[0]) if literals[0] else ""]
    for name, literal in zip(names, literals[1:], strict=True):
        pieces.append(f'"${{{name}}}"')
        pieces.append(shlex.quote(literal) if literal else "")
    return "".join(pieces)


def user_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Variables that the user fills in: those of a format that no launcher sets."""
    return {name: what for name, what in variables.items() if name not in LAUNCH_VARIABLES}


def variables_in(words: Iterable[str]) -> set[str]:
    """Names of the variables that words use."""
    return {name for word in words for name in _VARIABLE.findall(word)}


def command_lines(*parts: Iterable[str]) -> str:
    """A command over several lines: every part and option starts one, values stand beside it."""
    lines: list[str] = []
    for part in parts:
        for position, word in enumerate(part):
            if position == 0 or word.startswith("-"):
                lines.append(quoted(word))
            else:
                lines[-1] += f" {quoted(word)}"
    return " \\\n  ".join(lines)


def key_lines(script: str, keys: Iterable[OpenKey]) -> str:
    """Lines for ``check_lines`` that name keys which the user has not added to a file."""
    return "".join(_key_lines(script, each) for each in keys)


def _key_lines(script: str, open_key: OpenKey) -> str:
    text = f'"$(< {quoted(open_key.file)})"'
    tests = [f"""{text} != *'"{open_key.key}"'*"""]
    if open_key.section:
        tests.insert(0, f"""{text} == *'"{open_key.section}"'*""")
    words = f"{script}: {open_key.key} is not set in {open_key.file}: {open_key.what}"
    return f"""\
if [[ {" && ".join(tests)} ]]; then
  echo {shlex.quote(words)} >&2
  missing=1
fi
"""


def check_lines(script: str, variables: Mapping[str, str], extra: str = "") -> str:
    """Lines that end the script with exit code 2 and name all variables that are not set.

    ``extra`` holds further checks. Empty where there is nothing to check.
    """
    if not variables and not extra:
        return ""
    needs = "".join(f"need {name} {shlex.quote(what)}\n" for name, what in variables.items())
    return f"""\
missing=0
need() {{
  if [[ -z "${{!1:-}}" ]]; then
    echo "{script}: $1 is not set: $2" >&2
    missing=1
  fi
}}
{needs}{extra}[[ "${{missing}}" == 0 ]] || exit 2
"""
