"""SkyPilot: a task that takes this folder to rented machines.

Source: docs/source/reference/yaml-spec.rst of skypilot-org/skypilot; its names of accelerators in
hwdb are those of docs/source/compute/show-gpus-all.txt.
"""

from typing import Any

from planner.cost.context import Context
from planner.formats.format import Emitted, OutputFile
from planner.launchers.allocation import allocation_of, host_problems, job_name
from planner.launchers.launcher import Launcher
from planner.launchers.shell import SCRIPT, user_variables
from planner.launchers.torchrun import launch_script
from planner.launchers.yaml_text import yaml_text
from planner.spec.strategy import Strategy

RUN = f"""\
export NODE_RANK="${{SKYPILOT_NODE_RANK}}"
export MASTER_ADDR="${{SKYPILOT_NODE_IPS%%$'\\n'*}}"
exec bash {SCRIPT}
"""


def problems(context: Context, strategy: Strategy) -> list[str]:
    """Why SkyPilot cannot rent what a plan needs: its hosts, or its accelerator."""
    found, accelerator = host_problems(context, strategy), context.cluster.accelerator
    if not accelerator.skypilot_name:
        found.append(
            f"skypilot: it has no name for the accelerator {accelerator.name}; "
            "where it has one, that is skypilot_name of its file"
        )
    return found


def files(emitted: Emitted, context: Context, strategy: Strategy) -> tuple[OutputFile, ...]:
    """Return ``task.yaml`` and the ``launch.sh`` it runs."""
    nodes = allocation_of(context, strategy)
    accelerator = context.cluster.accelerator.skypilot_name
    content: dict[str, Any] = {
        "name": job_name(context),
        "workdir": ".",
        "num_nodes": nodes.num_nodes,
        "resources": {"accelerators": f"{accelerator}:{nodes.gpus_per_node}"},
    }
    variables = user_variables(emitted.variables)
    if variables:
        content["envs"] = dict.fromkeys(variables)
    content["run"] = RUN
    task = OutputFile(name="task.yaml", text=yaml_text(content))
    return (task, launch_script(emitted, context, strategy))


LAUNCHER = Launcher(
    name="skypilot",
    problems=problems,
    files=files,
    start=(
        "Run `sky launch task.yaml` in this folder, with `--env NAME=VALUE` for every variable "
        "under `envs`. The folder goes to the machines as it is; what the job needs beside it "
        "(software, data) is yours to add under `setup` and `file_mounts`."
    ),
)
