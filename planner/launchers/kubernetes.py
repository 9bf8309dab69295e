"""Kubernetes: a TrainJob of Kubeflow Trainer that carries the files with it.

Source: pkg/apis/trainer/v1alpha1/trainjob_types.go of kubeflow/trainer. Its torch runtime sets
PET_NODE_RANK and PET_MASTER_ADDR in every container.
"""

import re
from typing import Any

from planner.cost.context import Context
from planner.errors import ExpressError
from planner.formats.format import Emitted, OutputFile
from planner.launchers.allocation import allocation_of, host_problems, job_name
from planner.launchers.launcher import Launcher
from planner.launchers.shell import SCRIPT, quoted, user_variables
from planner.launchers.torchrun import launch_script
from planner.launchers.yaml_text import yaml_text
from planner.spec.strategy import Strategy

RUNTIME = "torch-distributed"
_NODE = "node"
"""Of that runtime, its job and its container."""
MAX_SCRIPT_BYTES = 65536
"""MaxLength of one argument in the type of a trainer."""
END = "END_OF_FILE"


def problems(context: Context, strategy: Strategy) -> list[str]:
    """Why no TrainJob can hold a plan: its hosts, or accelerators without a resource name."""
    found, accelerator = host_problems(context, strategy), context.cluster.accelerator
    if not accelerator.kubernetes_resource:
        found.append(
            f"kubernetes: no resource name is known for the accelerator {accelerator.name}; "
            "its device plugin's is kubernetes_resource of its file"
        )
    return found


def _here_document(file: OutputFile) -> str:
    """Lines that write a file inside the container."""
    end = END
    while end in file.text.splitlines():
        end += "_"
    newline = "" if file.text.endswith("\n") else "\n"
    folder = f'mkdir -p "$(dirname {quoted(file.name)})"\n' if "/" in file.name else ""
    mode = f"chmod +x {quoted(file.name)}\n" if file.is_executable else ""
    return f"{folder}cat > {quoted(file.name)} <<'{end}'\n{file.text}{newline}{end}\n{mode}"


def _literal(script: str) -> str:
    """Keep Kubernetes from replacing ``$(NAME)`` and ``$$`` in an argument."""
    return re.sub(r"\$+\(|\${2,}", lambda match: match[0].replace("$", "$$"), script)


def _script(emitted: Emitted, launch: OutputFile) -> str:
    written = "\n".join(_here_document(file) for file in (*emitted.files, launch))
    return f"""\
set -euo pipefail
cd "$(mktemp -d)"

{written}
export NODE_RANK="${{PET_NODE_RANK:-0}}"
export MASTER_ADDR="${{PET_MASTER_ADDR:-127.0.0.1}}"
exec bash {SCRIPT}
"""


def _patch(*, locks_memory: bool) -> dict[str, Any]:
    """Shared memory for collectives and data loaders; for RDMA the right to pin memory."""
    container: dict[str, Any] = {
        "name": _NODE,
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    }
    if locks_memory:
        container["securityContext"] = {"capabilities": {"add": ["IPC_LOCK"]}}
    pod = {
        "containers": [container],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
    }
    job = {"name": _NODE, "template": {"spec": {"template": {"spec": pod}}}}
    template = {"spec": {"replicatedJobs": [job]}}
    return {"manager": "planner", "trainingRuntimeSpec": {"template": template}}


def files(emitted: Emitted, context: Context, strategy: Strategy) -> tuple[OutputFile, ...]:
    """Return ``trainjob.yaml`` and the ``launch.sh`` that stands inside it."""
    nodes = allocation_of(context, strategy)
    resource = context.cluster.accelerator.kubernetes_resource
    launch = launch_script(emitted, context, strategy)
    script = _literal(_script(emitted, launch))
    if len(script.encode()) > MAX_SCRIPT_BYTES:
        raise ExpressError(
            "kubernetes: the files stand inside the TrainJob, in one argument of at most "
            f"{MAX_SCRIPT_BYTES} bytes; given {len(script.encode())}"
        )
    limits: dict[str, int] = {resource: nodes.gpus_per_node}
    fabric = context.cluster.fabric.kubernetes_resource
    is_remote = bool(fabric) and nodes.num_nodes > 1
    if is_remote:
        limits[fabric] = 1
    trainer = {
        "numNodes": nodes.num_nodes,
        "numProcPerNode": nodes.gpus_per_node,
        "resourcesPerNode": {"limits": limits},
        "command": ["bash", "-c"],
        "args": [script],
    }
    variables = user_variables(emitted.variables)
    if variables:
        trainer["env"] = [{"name": name, "value": ""} for name in variables]
    content = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": job_name(context)},
        "spec": {
            "runtimeRef": {"name": RUNTIME},
            "trainer": trainer,
            "runtimePatches": [_patch(locks_memory=is_remote)],
        },
    }
    return (OutputFile(name="trainjob.yaml", text=yaml_text(content)), launch)


LAUNCHER = Launcher(
    name="kubernetes",
    problems=problems,
    files=files,
    start=(
        "Run `kubectl create -f trainjob.yaml` where Kubeflow Trainer 2 is installed. Before that "
        "fill in the empty values under `spec.trainer.env`, and add `spec.trainer.image` where the "
        f"image of the runtime `{RUNTIME}` lacks the framework. The TrainJob holds the files of "
        "this folder and writes them in every container, so paths in variables must be absolute "
        "ones in the image. It asks for shared memory, and for RDMA by the name that NVIDIA's "
        "Network Operator gives; your device plugin may give another."
    ),
)
