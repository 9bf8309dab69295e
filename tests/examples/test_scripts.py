"""Scripts in the forms people write them (scripts/FORMAT), run before and after a plan is put in.

Launchers are stubs that note their words. In every environment these differ by the plan alone, and
the format's own reader takes them. A script whose first comment is ``by hand: WHY`` is not written.
"""

import os
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from planner.cost.context import Context
from planner.errors import ExpressError
from planner.formats.format import DECISIONS, Reading, SourceText
from planner.formats.megatron.decisions import OWNED
from planner.formats.megatron.read import options_in
from planner.formats.registry import load_format
from planner.spec.strategy import Strategy

FOLDER = Path(__file__).parent / "scripts"
STUBS = FOLDER / "bin"
SCRIPTS = sorted(FOLDER.glob("*/*.sh"))
BY_HAND = "# by hand: "
ENVIRONMENTS: tuple[dict[str, str], ...] = (
    {},
    {"WANDB_API_KEY": "x", "SLURM_NNODES": "1", "SLURM_NODEID": "0", "SLURM_JOB_ID": "7"},
    {"SLURM_JOB_ID": "7", "SLURM_NODEID": "1"},
)
PLANS: tuple[dict[str, object], ...] = (
    {"dp": 4, "tp": 2, "num_micro_batches": 4},
    {
        "dp": 2,
        "tp": 2,
        "pp": 2,
        "num_micro_batches": 8,
        "layers_per_stage": (3, 1),
        "recompute_layers_per_stage": (3, 1),
        "selective_layers_per_stage": (0, 0),
    },
)
"""On eight GPUs; the second needs a layout of the pipeline, whose signs a shell would take."""
NOT_DECIDED = {"seq_len", "precision", *(name for name in DECISIONS if "model" in name)}


def started(text: str, folder: Path, environment: dict[str, str]) -> list[list[str]]:
    """The words of every training program that a script starts."""
    (folder / "train.sh").write_bytes(text.encode())
    words = folder / "words"
    words.unlink(missing_ok=True)
    own = {"PATH": f"{STUBS}:{os.environ['PATH']}", "WORDS": str(words), "HOME": str(folder)}
    command = ["bash", "train.sh"]
    subprocess.run(command, cwd=folder, env=own | environment, check=True, timeout=20)
    lines = words.read_text().split("\0\n")[:-1]
    return [line.split("\0") for line in lines]


def read(words: list[str]) -> tuple[list[str], list[tuple[str, list[str]]], Reading]:
    """The launcher's words, options that are no decision of a plan, and what all decide."""
    at = next(at for at, word in enumerate(words) if word.endswith(".py")) + 1
    source = SourceText(path="words.args", text="\n".join(map(shlex.quote, words[at:])))
    _, entries = options_in(source)
    others = [(each.name, each.texts) for each in entries if each.name not in OWNED]
    return words[:at], others, load_format("megatron").read(source)


@pytest.mark.parametrize("plan", PLANS, ids=["words", "layout"])
@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_script_hands_on_the_plan_and_all_else_unchanged(
    path: Path,
    plan: dict[str, object],
    tmp_path: Path,
    context_of: Callable[..., Context],
    strategy_of: Callable[..., Strategy],
) -> None:
    text = path.read_bytes().decode()
    made, context, strategy = load_format("megatron"), context_of(), strategy_of(**plan)
    before = [started(text, tmp_path, each) for each in ENVIRONMENTS]
    assert all(before)
    source = SourceText(path="train.sh", text=text)
    if BY_HAND in text:
        with pytest.raises(ExpressError, match="tensor-model-parallel-size 2"):
            made.write_into(source, context, strategy)
        return
    written = made.write_into(source, context, strategy)
    emitted = made.emit(context, strategy).files[0]
    wanted = made.read(SourceText(path="emitted.args", text=emitted.text)).decisions
    for environment, own in zip(ENVIRONMENTS, before, strict=True):
        after = started(written, tmp_path, environment)
        for old, new in zip(own, after, strict=True):
            launcher, others, reading = read(new)
            assert (launcher, others) == read(old)[:2]
            if launcher[-1].startswith("tools/"):
                assert new == old
                continue
            assert not [each for each in reading.findings if each.severity == "error"]
            found = {name: each.value for name, each in reading.decisions.items()}
            for name in wanted.keys() - NOT_DECIDED:
                assert found.get(name, 1) == wanted[name].value, name
