"""SkyPilot: a task that takes this folder to rented machines.

Source: docs/source/reference/yaml-spec.rst and docs/source/compute/show-gpus-all.txt of
skypilot-org/skypilot.
"""

from typing import Any

from planner.cost.context import Context
from planner.frameworks.format import Emitted, OutputFile
from planner.launchers.allocation import allocation_of, host_problems, job_name
from planner.launchers.launcher import Launcher
from planner.launchers.shell import SCRIPT, user_variables
from planner.launchers.torchrun import launch_script
from planner.launchers.yaml_text import yaml_text
from planner.spec.strategy import Strategy

ACCELERATORS = {
    "a10": "A10",
    "a100-pcie-40": "A100",
    "a100-pcie-80": "A100-80GB",
    "a100-sxm-40": "A100",
    "a100-sxm-80": "A100-80GB",
    "a10g": "A10G",
    "b200-sxm": "B200",
    "gh200-96": "GH200",
    "h100-nvl": "H100-NVL",
    "h100-pcie": "H100",
    "h100-sxm": "H100",
    "h200-sxm": "H200",
    "l4": "L4",
    "l40s": "L40S",
    "mi300x": "MI300X",
    "p100-pcie-16": "P100",
    "rtx-a6000": "RTXA6000",
    "rtx3090": "RTX3090",
    "rtx4090": "RTX4090",
    "rtx5090": "RTX5090",
    "rtx6000-ada": "RTX6000-Ada",
    "t4": "T4",
    "v100-sxm2-16": "V100",
    "v100-sxm2-32": "V100-32GB",
}
"""SkyPilot's names of the catalog's accelerators that it offers."""
RUN = f"""\
export NODE_RANK="${{SKYPILOT_NODE_RANK}}"
export MASTER_ADDR="${{SKYPILOT_NODE_IPS%%$'\\n'*}}"
exec bash {SCRIPT}
"""


def problems(context: Context, strategy: Strategy) -> list[str]:
    """Why SkyPilot cannot rent what a plan needs: its hosts, or its accelerator."""
    found, name = host_problems(context, strategy), context.cluster.accelerator.name
    if name not in ACCELERATORS:
        found.append(
            f"skypilot: it has no name for the accelerator {name}; "
            f"it has for {', '.join(ACCELERATORS)}"
        )
    return found


def files(emitted: Emitted, context: Context, strategy: Strategy) -> tuple[OutputFile, ...]:
    """Return ``task.yaml`` and the ``launch.sh`` it runs."""
    nodes = allocation_of(context, strategy)
    accelerator = ACCELERATORS[context.cluster.accelerator.name]
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
