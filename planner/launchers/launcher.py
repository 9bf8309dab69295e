"""What a launcher offers, and torchrun's bash script, which each starts on every node.

Source: torch/distributed/run.py. The rendezvous is static: node k gets the ranks that the plan
gives it, which the c10d rendezvous leaves to the order in which nodes arrive.
"""

import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from planner.cost.context import Context
from planner.formats.format import Emitted, OutputFile, UserKey
from planner.spec.strategy import Strategy

# Accelerators behind one operating system, in all nodes of the catalog but whole racks.
MOST_PER_HOST = 16
# Kubernetes allows 63 characters and adds to a job's name those of its pods.
MAX_NAME = 40
# What every script sets before it starts the processes; words may use them in braces.
LAUNCH_VARIABLES = ("NNODES", "NPROC_PER_NODE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
SCRIPT = "launch.sh"
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
TORCHRUN = (
    "torchrun",
    "--nnodes=${NNODES}",
    "--nproc-per-node=${NPROC_PER_NODE}",
    "--node-rank=${NODE_RANK}",
    "--rdzv-backend=static",
    "--rdzv-endpoint=${MASTER_ADDR}:${MASTER_PORT}",
)


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """Equal nodes; rank r runs on node ``r // gpus_per_node``."""

    num_nodes: int
    gpus_per_node: int
    is_exclusive: bool  # all accelerators of the nodes are used


def host_problems(context: Context, strategy: Strategy) -> list[str]:
    """Return why a plan's ranks do not fit on equal hosts in order; empty if they do."""
    gpus, node = strategy.num_gpus, context.cluster.node
    per_node, found = node.num_accelerators, list[str]()
    if per_node > MOST_PER_HOST:
        usual = node.accelerator.usual_node
        hosts = f", such as {usual}" if usual else ""
        found.append(
            f"{node.name}: a launcher starts processes per host; given a node of {per_node} "
            f"accelerators, a rack of several hosts; allowed are at most {MOST_PER_HOST}; "
            f"plan with the rack's hosts as nodes (`planner show hardware`){hosts}"
        )
    if gpus > per_node and gpus % per_node:
        found.append(
            f"{node.name}: beyond one node whole nodes are launched; given {gpus} GPUs, "
            f"allowed are at most {per_node} or a multiple of it"
        )
    return found


def allocation_of(context: Context, strategy: Strategy) -> Allocation:
    """Return the nodes of a plan that has no host_problems."""
    gpus, per_node = strategy.num_gpus, context.cluster.node.num_accelerators
    return Allocation(
        num_nodes=max(1, gpus // per_node),
        gpus_per_node=min(gpus, per_node),
        is_exclusive=gpus >= per_node,
    )


def job_name(context: Context) -> str:
    """Return a name that every launcher takes: an RFC 1035 label from model and cluster."""
    label = re.sub(r"[^a-z0-9]+", "-", f"{context.model.name}-{context.cluster.name}".lower())
    label = re.sub(r"^[^a-z]+", "", label)[:MAX_NAME].strip("-")
    return label or "train"


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


def key_lines(script: str, open_key: UserKey) -> str:
    """Lines for ``check_lines`` that name a key which the user has not added to a file."""
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


def launch_script(emitted: Emitted, context: Context, strategy: Strategy) -> OutputFile:
    """The script that starts the processes of one node; other launchers call it."""
    words = (*emitted.own_launcher, *emitted.command, *emitted.environment.values())
    unknown = variables_in(words) - {*emitted.variables, *LAUNCH_VARIABLES}
    if unknown:
        # a defect of the format: nobody sets them
        raise ValueError(f"variables without a meaning: {', '.join(sorted(unknown))}")
    nodes = allocation_of(context, strategy)
    where = "this machine" if nodes.num_nodes == 1 else "every node"
    checks = "".join(key_lines(SCRIPT, each) for each in emitted.open_keys)
    checks += """\
if [[ "${NNODES}" != 1 ]]; then
  need NODE_RANK 'number of this node, counted from 0'
  need MASTER_ADDR 'host name or address of node 0'
fi
"""
    exports = "".join(f"export {k}={quoted(v)}\n" for k, v in emitted.environment.items())
    starter, command = (emitted.own_launcher or TORCHRUN), emitted.command
    text = f"""\
#!/usr/bin/env bash
# Starts {nodes.gpus_per_node} processes on each of {nodes.num_nodes} nodes; run it on {where}.
# README.md says what was decided, and why. Paths are relative to the folder of this file.
set -euo pipefail
cd -- "$(dirname -- "${{BASH_SOURCE[0]}}")"

export NNODES="${{NNODES:-{nodes.num_nodes}}}"
export NPROC_PER_NODE="${{NPROC_PER_NODE:-{nodes.gpus_per_node}}}"

{check_lines(SCRIPT, user_variables(emitted.variables), checks)}
export NODE_RANK="${{NODE_RANK:-0}}"
export MASTER_ADDR="${{MASTER_ADDR:-127.0.0.1}}"
export MASTER_PORT="${{MASTER_PORT:-29500}}"
{exports}
exec {command_lines(starter, command)}
"""
    return OutputFile(name=SCRIPT, text=text, is_executable=True)


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """A way to start the processes of a plan on its nodes."""

    name: str
    start: str  # how to start them, a paragraph of Markdown for the README
    # Its own file, which starts the script on every node; none: people do.
    own: Callable[[Emitted, Context, Allocation, OutputFile], OutputFile] | None = None
    needs: str = ""  # the key of an accelerator's file that its own file is made with
    lacks: str = ""  # what is wrong with an accelerator whose file has none

    def problems(self, context: Context, strategy: Strategy) -> list[str]:
        """Return why the launcher cannot start such a plan; empty if it can."""
        found, accelerator = host_problems(context, strategy), context.cluster.accelerator
        if self.needs and not getattr(accelerator, self.needs):
            found.append(self.lacks.format(accelerator.name))
        return found

    def files(
        self, emitted: Emitted, context: Context, strategy: Strategy
    ) -> tuple[OutputFile, ...]:
        """Return the files for a plan without problems; ExpressError where they are too large."""
        script = launch_script(emitted, context, strategy)
        if self.own is None:
            return (script,)
        return (self.own(emitted, context, allocation_of(context, strategy), script), script)
