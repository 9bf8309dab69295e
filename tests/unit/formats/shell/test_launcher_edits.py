"""Another number of processes changes what torchrun and Slurm say of the whole job, together."""

import pytest

from planner.errors import ExpressError
from planner.formats.format import SourceText
from planner.formats.shell.launch import processes_edit
from planner.formats.shell.script import read_script

NAMED = 'N=${SLURM_NNODES:-"1"}\nsrun torchrun --nnodes $N --nproc-per-node 8 t.py'
PER_NODE = "#SBATCH --gpus-per-node=8\n"


def edited(text: str, num_gpus: int) -> str:
    """The text with the launcher of its last command starting so many processes."""
    source = SourceText(path="run.sh", text=text)
    command = read_script(source).commands[-1]
    for start, end, new in sorted(
        processes_edit(source, (*command.launcher, *command.words), num_gpus), reverse=True
    ):
        text = text[:start] + new + text[end:]
    return text


@pytest.mark.parametrize(
    ("text", "after"),
    [
        (f"#SBATCH --nodes=1\n{PER_NODE}srun python t.py", "#SBATCH --nodes=2\n"),
        (f"#SBATCH --ntasks=8\n{PER_NODE}srun python t.py", "#SBATCH --ntasks=16\n"),
        ("#SBATCH -N 1\n#SBATCH -n 8\nsrun python t.py", "#SBATCH -N 2\n#SBATCH -n 16\n"),
        ("#SBATCH --gpus=8\nsrun python t.py", "#SBATCH --gpus=16\n"),
        ("srun -N1 --ntasks-per-node=8 python t.py", "srun -N2 --ntasks-per-node=8 "),
        (
            "#SBATCH --nodes=1\nsrun torchrun --nnodes=1 --nproc-per-node=8 t.py",
            "#SBATCH --nodes=2\nsrun torchrun --nnodes=2 --nproc-per-node=8",
        ),
        (f"#SBATCH --nodes=1\n{NAMED}", f"#SBATCH --nodes=2\n{NAMED}"),
        ("N=1\ntorchrun --nnodes $N --nproc_per_node=8", "N=1\ntorchrun --nnodes 2 "),
    ],
)
def test_numbers_of_the_whole_job_change_together(text: str, after: str) -> None:
    assert edited(text, 16).startswith(after)
    assert edited(text, 8) == text


@pytest.mark.parametrize("number", ['${SLURM_NNODES:-"1"}', "$N"])
def test_a_number_that_comes_from_elsewhere_stays(number: str) -> None:
    text = f"srun torchrun --nnodes {number} --nproc-per-node 8 t.py"
    assert edited(text, 16) == text


@pytest.mark.parametrize(
    "text",
    [
        "#SBATCH --nodes=1\nsrun torchrun --nnodes 1 --nproc-per-node 8 t.py",
        "torchrun --nproc-per-node 8 t.py",
    ],
)
def test_a_part_of_a_node_is_refused(text: str) -> None:
    with pytest.raises(ExpressError, match="12 processes do not make up whole nodes of 8"):
        edited(text, 12)
