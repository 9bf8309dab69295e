"""How many processes a script starts, as torchrun's words and Slurm's say it."""

import pytest

from planner.formats.format import SourceText
from planner.formats.shell.launch import launcher_settings, processes
from planner.formats.shell.script import read_script
from planner.formats.shell.word import Lines

TORCHRUN = "torchrun --nproc-per-node 8 --nnodes"


def counted(text: str) -> tuple[int, str, int] | None:
    """Processes, and by which word in which line."""
    commands = read_script(SourceText(path="run.sh", text=text)).commands
    started = ((*each.launcher, *each.words) for each in commands)
    words = next(each for each in started if "t.py" in " ".join(word.text for word in each))
    found = processes(launcher_settings(words, Lines(text)))
    return (found.value, found.key, found.line) if found else None


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("torchrun --nproc-per-node 8 t.py", (8, "--nproc-per-node", 1)),
        (f"{TORCHRUN} 2 t.py", (16, "--nproc-per-node", 1)),
        (f"{TORCHRUN} ${{N:-2}} t.py", (16, "--nproc-per-node", 1)),
        (f"{TORCHRUN} ${{SLURM_NNODES:-1}} t.py", None),
        (f"{TORCHRUN} ${{WORLD_SIZE:-1}} t.py", None),
        (f"#SBATCH --nodes=4\n{TORCHRUN} $SLURM_NNODES t.py", (32, "--nproc-per-node", 2)),
        (f"#SBATCH -N 4\n{TORCHRUN} ${{SLURM_NNODES:-1}} t.py", (32, "--nproc-per-node", 2)),
        (f"#SBATCH --nodes 2-4\n{TORCHRUN} $SLURM_NNODES t.py", None),
        ("#SBATCH -N4\n#SBATCH --gres=gpu:8\nsrun python t.py", (32, "--gres", 2)),
        ("#SBATCH -N 4\n#SBATCH --gpus-per-node=h100:8\nsrun t.py", (32, "--gpus-per-node", 2)),
        ("#SBATCH -N 4\n#SBATCH --ntasks-per-node=8\nsrun t.py", (32, "--ntasks-per-node", 2)),
        ("#SBATCH -N 4\n#SBATCH --ntasks-per-node=1\nsrun t.py", None),
        ("#SBATCH --ntasks=32 # of 8\nsrun python t.py", (32, "--ntasks", 1)),
        ("srun -N 4 --ntasks-per-node 8 bash -c 'python t.py'", (32, "--ntasks-per-node", 1)),
        ("sbatch -N 2 <<E\n#SBATCH --gres=gpu:4\nsrun t.py\nE", (8, "--gres", 2)),
        ("# --nodes=4\nmpirun -n 8 python t.py", None),
    ],
)
def test_processes_are_nodes_times_what_each_starts(
    text: str, found: tuple[int, str, int] | None
) -> None:
    assert counted(text) == found
