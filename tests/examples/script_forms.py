"""Scripts in the forms people write them (scripts/FORMAT), and how they are run with stubs.

Launchers are stubs that note their words.
"""

import os
import re
import shlex
import subprocess
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from planner.formats.bridge.format import overrides_in
from planner.formats.bridge.mapping import OPTIONS, PRECISION
from planner.formats.format import DECISIONS, ParsedConfig, SourceText
from planner.formats.megatron.format import options_in
from planner.formats.megatron.mapping import OWNED
from planner.formats.registry import load_format
from planner.formats.shell.launch import Launches
from planner.formats.torchtitan.mapping import DECIDING
from planner.formats.torchtitan.read import entries_in

FOLDER = Path(__file__).parent / "scripts"
STUBS = FOLDER / "bin"
BY_HAND = "# by hand: "
ENVIRONMENTS: tuple[dict[str, str], ...] = (
    {},
    {"WANDB_API_KEY": "x", "SLURM_NNODES": "1", "SLURM_NODEID": "0", "SLURM_JOB_ID": "7"},
    {"SLURM_JOB_ID": "7", "SLURM_NODEID": "1", "SLURM_NNODES": "1"},
)
NOT_DECIDED = {"seq_len", "precision", *(name for name in DECISIONS if "model" in name)}
PLAN: Mapping[str, object] = {"dp": 4, "tp": 2, "num_micro_batches": 4}
LAYOUT: Mapping[str, object] = {
    "dp": 2,
    "tp": 2,
    "pp": 2,
    "num_micro_batches": 8,
    "layers_per_stage": (3, 1),
    "recompute_layers_per_stage": (3, 1),
    "selective_layers_per_stage": (0, 0),
}


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A format, how its words are looked at, and plans on eight GPUs to put into its scripts."""

    options: Callable[[SourceText], Launches]
    deciding: Container[str]
    option: str = ""
    """What the words handed to the format's reader look like, where they are not all."""
    context: Mapping[str, object] = field(default_factory=dict)
    plans: Sequence[Mapping[str, object]] = (PLAN, LAYOUT)
    """The second needs a layout of the pipeline, whose signs a shell would take."""
    refused: str = ""  # what the refusal of a script that is not written has to say
    unsaid: frozenset[str] = frozenset()
    """Decisions that are not put into a file that is silent about them."""


SHARDED = {"zero_stage": 3, "sequence_parallel": True}
KINDS: Mapping[str, Kind] = {
    "megatron": Kind(options=options_in, deciding=OWNED, refused="tensor-model-parallel-size 2"),
    "bridge": Kind(
        options=overrides_in,
        deciding={*OPTIONS, PRECISION, "model.cuda_graph_impl"},
        option=r"\+*\w+(\.\w+)*=",
        refused="model.tensor_model_parallel_size=2",
        unsaid=frozenset({"optimizer", "etp", "gradient_bytes"}),
    ),
    "torchtitan": Kind(
        options=entries_in,
        deciding=DECIDING,
        context={"model": "llama3-8b", "framework": "torchtitan"},
        plans=(
            {**PLAN, **SHARDED, "layers_per_stage": (32,)},
            {
                **LAYOUT,
                **SHARDED,
                "layers_per_stage": (17, 15),
                "recompute_layers_per_stage": (17, 15),
            },
        ),
        refused="parallelism.tensor_parallel_degree 2",
    ),
}
SCRIPTS = sorted(path for name in KINDS for path in FOLDER.glob(f"{name}/*.sh"))


def started(text: str, folder: Path, environment: dict[str, str]) -> list[list[str]]:
    """The words of every training program that a script starts."""
    (folder / "train.sh").write_bytes(text.encode())
    if not (folder / "run_train.sh").exists():
        (folder / "run_train.sh").symlink_to(STUBS / "run_train.sh")
    words = folder / "words"
    words.unlink(missing_ok=True)
    own = {"PATH": f"{STUBS}:{os.environ['PATH']}", "WORDS": str(words), "HOME": str(folder)}
    command = ["bash", "train.sh"]
    subprocess.run(command, cwd=folder, env=own | environment, check=True, timeout=20)
    lines = words.read_text().split("\0\n")[:-1]
    return [line.split("\0") for line in lines]


def read(
    name: str, words: list[str]
) -> tuple[list[str], list[tuple[str, list[str]]], ParsedConfig]:
    """The launcher's words, options that are no decision of a plan, and what all decide."""
    kind = KINDS[name]
    ends = (".py", "torchtitan.train")
    at = next(at for at, word in enumerate(words) if word.endswith(ends)) + 1
    own = [word for word in words[at:] if re.match(kind.option, word)]
    source = SourceText(path="words.args", text="\n".join(map(shlex.quote, own)))
    (_, entries), _ = kind.options(source)
    others = [(each.name, each.texts) for each in entries if each.name not in kind.deciding]
    beside = [word for word in words[at:] if word not in own]
    return [*words[:at], *beside], others, load_format(name).read(source)
