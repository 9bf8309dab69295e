"""torchrun's bash script, and Slurm, Kubernetes and SkyPilot, which start it on every node.

Sources: torch/distributed/run.py; the manual pages of sbatch, srun and scontrol;
pkg/apis/trainer/v1alpha1/trainjob_types.go of kubeflow/trainer, whose torch runtime sets
PET_NODE_RANK and PET_MASTER_ADDR in every container; docs/source/reference/yaml-spec.rst of
skypilot-org/skypilot, whose names of accelerators in hwdb are those of
docs/source/compute/show-gpus-all.txt.

The rendezvous is static: node k gets the ranks that the plan gives it, which the c10d rendezvous
leaves to the order in which nodes arrive.
"""

import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from planner.cost.context import Context
from planner.documents.tree import load_own
from planner.errors import ExpressError, InputError, unknown
from planner.formats.format import Emitted, OutputFile, UserKey
from planner.spec.strategy import Strategy

# Accelerators behind one operating system, in all nodes of the catalog but whole racks.
MOST_PER_HOST = 16
# Kubernetes allows 63 characters and adds to a job's name those of its pods.
MAX_NAME = 40
# What every script sets before it starts the processes; words may use them in braces.
LAUNCH_VARIABLES = ("NNODES", "NPROC_PER_NODE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")
# Set to 1: what the plan does not decide is made up.
MOCK = "MOCK"
SCRIPT = "launch.sh"
BATCH_SCRIPT = "launch.sbatch"
RUNTIME = "torch-distributed"
# MaxLength of one argument in the type of a trainer.
MAX_SCRIPT_BYTES = 65536
_VARIABLE = re.compile(r"(\$\{[A-Za-z_][A-Za-z0-9_]*\})")
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


def allocation_of(context: Context, strategy: Strategy) -> Allocation:
    """Return the nodes of a plan that a launcher can start."""
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
    pieces = _VARIABLE.split(word)
    if len(pieces) == 1:
        return shlex.quote(word)
    # Every other piece is a variable.
    return "".join(
        f'"{piece}"' if at % 2 else shlex.quote(piece) for at, piece in enumerate(pieces) if piece
    )


def user_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Variables that the user fills in: those of a format that no launcher sets."""
    return {name: what for name, what in variables.items() if name not in LAUNCH_VARIABLES}


def _variable_names(emitted: Emitted) -> list[str]:
    return [*user_variables(emitted.variables), *([MOCK] if emitted.mock else [])]


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


def check_lines(script: str, emitted: Emitted, extra: str = "") -> str:
    """Lines that end the script with exit code 2 and name all variables that are not set.

    ``extra`` holds further checks. Empty where there is nothing to check.
    """
    variables, needs = user_variables(emitted.variables), ""
    if not variables and not extra:
        return ""
    for name, what in variables.items():
        unless = "is_mock || " if emitted.mock and name in emitted.of_run else ""
        needs += f"{unless}need {name} {shlex.quote(what)}\n"
    if emitted.mock:
        needs = f'is_mock() {{ [[ "${{{MOCK}:-0}}" == 1 ]]; }}\n{needs}'
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
    starter, command = (emitted.own_launcher or TORCHRUN), command_lines(emitted.command)
    words = ""
    if emitted.mock:
        run, mock = (
            command_lines(each).replace(" \\\n", "\n  ") for each in (emitted.run, emitted.mock)
        )
        words = f"\nif is_mock; then\n  run=(\n    {mock}\n  )\nelse\n  run=(\n    {run}\n  )\nfi\n"
        command += ' \\\n  "${run[@]}"'
    elif emitted.run:
        command += f" \\\n  {command_lines(emitted.run)}"
    if emitted.arguments:
        # A file of words is read as this script is: by the shell.
        words += f'eval "arguments=($(< {quoted(emitted.arguments)}))"\n'
        command += ' \\\n  "${arguments[@]}"'
    text = f"""\
#!/usr/bin/env bash
# Starts {nodes.gpus_per_node} processes on each of {nodes.num_nodes} nodes; run it on {where}.
# README.md says what was decided, and why. Paths are relative to the folder of this file.
set -euo pipefail
cd -- "$(dirname -- "${{BASH_SOURCE[0]}}")"

export NNODES="${{NNODES:-{nodes.num_nodes}}}"
export NPROC_PER_NODE="${{NPROC_PER_NODE:-{nodes.gpus_per_node}}}"

{check_lines(SCRIPT, emitted, checks)}
export NODE_RANK="${{NODE_RANK:-0}}"
export MASTER_ADDR="${{MASTER_ADDR:-127.0.0.1}}"
export MASTER_PORT="${{MASTER_PORT:-29500}}"
{exports}{words}
exec {command_lines(starter)} \\
  {command}
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
        gpus, node = strategy.num_gpus, context.cluster.node
        per_node, accelerator, found = node.num_accelerators, node.accelerator, list[str]()
        if per_node > MOST_PER_HOST:
            usual = accelerator.usual_node
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


def _slurm_file(emitted: Emitted, context: Context, nodes: Allocation, _: OutputFile) -> OutputFile:
    """Return ``launch.sbatch``."""
    directives = [
        f"--job-name={job_name(context)}",
        f"--nodes={nodes.num_nodes}",
        "--ntasks-per-node=1",
        f"--gpus-per-node={nodes.gpus_per_node}",
        *(["--exclusive"] if nodes.is_exclusive else []),
    ]
    checks = check_lines(BATCH_SCRIPT, emitted)
    text = f"""\
#!/usr/bin/env bash
{"".join(f"#SBATCH {directive}{chr(10)}" for directive in directives)}\
# Submit it in its own folder. README.md says what was decided, and why.
set -euo pipefail

{checks}\
if [[ ! -f {SCRIPT} ]]; then
  echo "{BATCH_SCRIPT}: no {SCRIPT} in ${{PWD}}; submit the job in the folder of both" >&2
  exit 2
fi
hosts="$(scontrol show hostnames "${{SLURM_JOB_NODELIST}}")"
export MASTER_ADDR="${{hosts%%$'\\n'*}}"

srun --ntasks-per-node=1 --cpu-bind=none \\
  bash -c 'NODE_RANK="${{SLURM_NODEID}}" exec bash {SCRIPT}'
"""
    return OutputFile(name=BATCH_SCRIPT, text=text, is_executable=True)


def _here_document(file: OutputFile) -> str:
    """Lines that write a file inside the container."""
    end = "END_OF_FILE"
    while end in file.text.splitlines():
        end += "_"
    newline = "" if file.text.endswith("\n") else "\n"
    folder = f'mkdir -p "$(dirname {quoted(file.name)})"\n' if "/" in file.name else ""
    mode = f"chmod +x {quoted(file.name)}\n" if file.is_executable else ""
    return f"{folder}cat > {quoted(file.name)} <<'{end}'\n{file.text}{newline}{end}\n{mode}"


def _kubernetes_file(
    emitted: Emitted, context: Context, nodes: Allocation, launch: OutputFile
) -> OutputFile:
    """Return ``trainjob.yaml``, with all other files inside it."""
    resource = context.cluster.accelerator.kubernetes_resource
    written = "\n".join(_here_document(file) for file in (*emitted.files, launch))
    script = f"""\
set -euo pipefail
cd "$(mktemp -d)"

{written}
export NODE_RANK="${{PET_NODE_RANK:-0}}"
export MASTER_ADDR="${{PET_MASTER_ADDR:-127.0.0.1}}"
exec bash {SCRIPT}
"""
    # Kubernetes replaces $(NAME) and $$ in an argument where the dollar is not doubled
    script = re.sub(r"\$+\(|\${2,}", lambda match: match[0].replace("$", "$$"), script)
    if len(script.encode()) > MAX_SCRIPT_BYTES:
        raise ExpressError(
            "kubernetes: the files stand inside the TrainJob, in one argument of at most "
            f"{MAX_SCRIPT_BYTES} bytes; given {len(script.encode())}"
        )
    # The runtime calls both its job and its container ``node``.
    # shared memory for collectives and data loaders; for RDMA the right to pin memory
    shared = {"name": "shm", "emptyDir": {"medium": "Memory"}}
    mounts = {"name": "node", "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}]}
    pinning = {"securityContext": {"capabilities": {"add": ["IPC_LOCK"]}}}
    fabric = context.cluster.fabric.kubernetes_resource if nodes.num_nodes > 1 else ""
    pod = {"containers": [mounts | (pinning if fabric else {})], "volumes": [shared]}
    job = {"name": "node", "template": {"spec": {"template": {"spec": pod}}}}
    patch = {"template": {"spec": {"replicatedJobs": [job]}}}
    environment = [{"name": name, "value": ""} for name in _variable_names(emitted)]
    trainer = {
        "numNodes": nodes.num_nodes,
        "numProcPerNode": nodes.gpus_per_node,
        "resourcesPerNode": {
            "limits": {resource: nodes.gpus_per_node} | ({fabric: 1} if fabric else {})
        },
        "command": ["bash", "-c"],
        "args": [script],
        **({"env": environment} if environment else {}),
    }
    spec = {
        "runtimeRef": {"name": RUNTIME},
        "trainer": trainer,
        "runtimePatches": [{"manager": "planner", "trainingRuntimeSpec": patch}],
    }
    content = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": job_name(context)},
        "spec": spec,
    }
    return OutputFile(name="trainjob.yaml", text=_yaml_text(content))


def _skypilot_file(
    emitted: Emitted, context: Context, nodes: Allocation, _: OutputFile
) -> OutputFile:
    """Return ``task.yaml``."""
    accelerator = context.cluster.accelerator.skypilot_name
    content: dict[str, Any] = {
        "name": job_name(context),
        "workdir": ".",
        "num_nodes": nodes.num_nodes,
        "resources": {"accelerators": f"{accelerator}:{nodes.gpus_per_node}"},
    }
    if variables := _variable_names(emitted):
        content["envs"] = dict.fromkeys(variables)
    content["run"] = f"""\
export NODE_RANK="${{SKYPILOT_NODE_RANK}}"
export MASTER_ADDR="${{SKYPILOT_NODE_IPS%%$'\\n'*}}"
exec bash {SCRIPT}
"""
    return OutputFile(name="task.yaml", text=_yaml_text(content))


class _Dumper(yaml.SafeDumper):
    """Writes text of several lines as a literal block."""


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
    ),
)


def _yaml_text(content: dict[str, Any]) -> str:
    """The document for people to read: keys in the order given, scripts as literal blocks."""
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


_OWN = {"slurm": _slurm_file, "kubernetes": _kubernetes_file, "skypilot": _skypilot_file}
LAUNCHERS: Mapping[str, Launcher] = {
    name: Launcher(name=name, own=_OWN.get(name), **words)
    for name, words in load_own(__package__, "launchers.yaml").items()
}


def load_launcher(name: str) -> Launcher:
    """Return a launcher by name; InputError where there is none."""
    if name not in LAUNCHERS:
        raise InputError.single("command line", "--launcher", unknown("launcher", name, LAUNCHERS))
    return LAUNCHERS[name]
