"""Slurm, Kubernetes and SkyPilot: what starts ``launch.sh`` on the nodes of a plan.

Sources: the manual pages of sbatch, srun and scontrol; pkg/apis/trainer/v1alpha1/trainjob_types.go
of kubeflow/trainer, whose torch runtime sets PET_NODE_RANK and PET_MASTER_ADDR in every container;
docs/source/reference/yaml-spec.rst of skypilot-org/skypilot, whose names of accelerators in hwdb
are those of docs/source/compute/show-gpus-all.txt.
"""

import re
from collections.abc import Mapping
from typing import Any

import yaml

from planner.cost.context import Context
from planner.errors import ExpressError, InputError
from planner.formats.format import Emitted, OutputFile
from planner.launchers.launcher import (
    SCRIPT,
    Allocation,
    Launcher,
    check_lines,
    job_name,
    quoted,
    user_variables,
)
from planner.spelling import unknown

BATCH_SCRIPT = "launch.sbatch"
RUNTIME = "torch-distributed"
# MaxLength of one argument in the type of a trainer.
MAX_SCRIPT_BYTES = 65536


def _slurm_file(emitted: Emitted, context: Context, nodes: Allocation, _: OutputFile) -> OutputFile:
    """Return ``launch.sbatch``."""
    directives = [
        f"--job-name={job_name(context)}",
        f"--nodes={nodes.num_nodes}",
        "--ntasks-per-node=1",
        f"--gpus-per-node={nodes.gpus_per_node}",
        *(["--exclusive"] if nodes.is_exclusive else []),
    ]
    checks = check_lines(BATCH_SCRIPT, user_variables(emitted.variables))
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
    environment = [{"name": name, "value": ""} for name in user_variables(emitted.variables)]
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
    if variables := user_variables(emitted.variables):
        content["envs"] = dict.fromkeys(variables)
    content["run"] = f"""\
export NODE_RANK="${{SKYPILOT_NODE_RANK}}"
export MASTER_ADDR="${{SKYPILOT_NODE_IPS%%$'\\n'*}}"
exec bash {SCRIPT}
"""
    return OutputFile(name="task.yaml", text=_yaml_text(content))


class _Dumper(yaml.SafeDumper):
    """Writes text of several lines as a literal block."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


def _yaml_text(content: dict[str, Any]) -> str:
    """The document for people to read: keys in the order given, scripts as literal blocks."""
    return yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


_ALL = (
    Launcher(
        name="torchrun",
        start=(
            "Run `./launch.sh` on every node. With more than one node, `NODE_RANK` (0 on the "
            "first) and `MASTER_ADDR` (the first node's name or address) must be set. "
            "`MASTER_PORT` is 29500 where it is not set. Relative paths in variables count from "
            "this folder."
        ),
    ),
    Launcher(
        name="slurm",
        own=_slurm_file,
        start=(
            "Run `sbatch launch.sbatch` in this folder, which all nodes must see. Partition, "
            "account and time limit are your site's: give them beside, such as `sbatch "
            "--partition=P --time=1-0 launch.sbatch`. Slurm lists the nodes of a job in the order "
            "of its configuration, or of its topology plugin, and the ranks follow that order."
        ),
    ),
    Launcher(
        name="kubernetes",
        own=_kubernetes_file,
        needs="kubernetes_resource",
        lacks=(
            "kubernetes: no resource name is known for the accelerator {}; its device plugin's is "
            "kubernetes_resource of its file"
        ),
        start=(
            "Run `kubectl create -f trainjob.yaml` where Kubeflow Trainer 2 is installed. Before "
            "that fill in the empty values under `spec.trainer.env`, and add `spec.trainer.image` "
            f"where the image of the runtime `{RUNTIME}` lacks the framework. The TrainJob holds "
            "the files of this folder and writes them in every container, so paths in variables "
            "must be absolute ones in the image. It asks for shared memory, and for RDMA by the "
            "name that NVIDIA's Network Operator gives; your device plugin may give another."
        ),
    ),
    Launcher(
        name="skypilot",
        own=_skypilot_file,
        needs="skypilot_name",
        lacks=(
            "skypilot: it has no name for the accelerator {}; where it has one, that is "
            "skypilot_name of its file"
        ),
        start=(
            "Run `sky launch task.yaml` in this folder, with `--env NAME=VALUE` for every "
            "variable under `envs`. The folder goes to the machines as it is; what the job needs "
            "beside it (software, data) is yours to add under `setup` and `file_mounts`."
        ),
    ),
)
LAUNCHERS: Mapping[str, Launcher] = {each.name: each for each in _ALL}


def load_launcher(name: str) -> Launcher:
    """Return a launcher by name; InputError where there is none."""
    if name not in LAUNCHERS:
        message = unknown("launcher", name, LAUNCHERS)
        raise InputError.single("command line", "--launcher", message)
    return LAUNCHERS[name]
