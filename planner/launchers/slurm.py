"""Slurm: a batch script that runs ``launch.sh`` once per node.

Source: the manual pages of sbatch, srun and scontrol.
"""

from planner.cost.context import Context
from planner.formats.format import Emitted, OutputFile
from planner.launchers.allocation import allocation_of, host_problems, job_name
from planner.launchers.launcher import Launcher
from planner.launchers.shell import SCRIPT, check_lines, user_variables
from planner.launchers.torchrun import launch_script
from planner.spec.strategy import Strategy

BATCH_SCRIPT = "launch.sbatch"


def files(emitted: Emitted, context: Context, strategy: Strategy) -> tuple[OutputFile, ...]:
    """Return ``launch.sbatch`` and the ``launch.sh`` it runs."""
    nodes = allocation_of(context, strategy)
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
    script = OutputFile(name=BATCH_SCRIPT, text=text, is_executable=True)
    return (script, launch_script(emitted, context, strategy))


LAUNCHER = Launcher(
    name="slurm",
    problems=host_problems,
    files=files,
    start=(
        "Run `sbatch launch.sbatch` in this folder, which all nodes must see. Partition, account "
        "and time limit are your site's: give them beside, such as `sbatch --partition=P "
        "--time=1-0 launch.sbatch`. Slurm lists the nodes of a job in the order of its "
        "configuration, or of its topology plugin, and the ranks follow that order."
    ),
)
