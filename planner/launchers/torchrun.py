"""torchrun: one bash script that is run on every node.

Source: torch/distributed/run.py. The rendezvous is static: node k gets the ranks that the plan
gives it, which the c10d rendezvous leaves to the order in which nodes arrive.
"""

from planner.cost.context import Context
from planner.formats.format import Emitted, OutputFile
from planner.launchers.allocation import allocation_of, host_problems
from planner.launchers.launcher import Launcher
from planner.launchers.shell import (
    LAUNCH_VARIABLES,
    SCRIPT,
    check_lines,
    command_lines,
    key_lines,
    quoted,
    user_variables,
    variables_in,
)
from planner.spec.strategy import Strategy

TORCHRUN = (
    "torchrun",
    "--nnodes=${NNODES}",
    "--nproc-per-node=${NPROC_PER_NODE}",
    "--node-rank=${NODE_RANK}",
    "--rdzv-backend=static",
    "--rdzv-endpoint=${MASTER_ADDR}:${MASTER_PORT}",
)
PORT = 29500
SEVERAL_NODES = """\
if [[ "${NNODES}" != 1 ]]; then
  need NODE_RANK 'number of this node, counted from 0'
  need MASTER_ADDR 'host name or address of node 0'
fi
"""


def _check_variables(emitted: Emitted) -> None:
    """A defect of the format: words use variables that nobody sets."""
    words = (*emitted.own_launcher, *emitted.command, *emitted.environment.values())
    unknown = variables_in(words) - {*emitted.variables, *LAUNCH_VARIABLES}
    if unknown:
        raise ValueError(f"variables without a meaning: {', '.join(sorted(unknown))}")


def launch_script(emitted: Emitted, context: Context, strategy: Strategy) -> OutputFile:
    """The script that starts the processes of one node; other launchers call it."""
    _check_variables(emitted)
    nodes = allocation_of(context, strategy)
    where = "this machine" if nodes.num_nodes == 1 else "every node"
    checks = key_lines(SCRIPT, emitted.open_keys) + SEVERAL_NODES
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
export MASTER_PORT="${{MASTER_PORT:-{PORT}}}"
{exports}
exec {command_lines(starter, command)}
"""
    return OutputFile(name=SCRIPT, text=text, is_executable=True)


def files(emitted: Emitted, context: Context, strategy: Strategy) -> tuple[OutputFile, ...]:
    """Return ``launch.sh``."""
    return (launch_script(emitted, context, strategy),)


LAUNCHER = Launcher(
    name="torchrun",
    problems=host_problems,
    files=files,
    start=(
        "Run `./launch.sh` on every node. With more than one node, `NODE_RANK` (0 on the first) "
        "and `MASTER_ADDR` (the first node's name or address) must be set. `MASTER_PORT` is 29500 "
        "where it is not set. Relative paths in variables count from this folder."
    ),
)
