"""Names and paths of files, however hostile, are words of what is written and never run.

Models and clusters are made directly, past the reader that refuses such names. What is written is
run by bash with programs that note their words in place of torchrun, srun and accelerate.
"""

import ast
import re
import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from contexts import context_of, small_model, strategy_of
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.answers.base import Plan
from planner.answers.plan_file import plan_text
from planner.cost.context import Context
from planner.cost.estimate import estimate
from planner.formats.format import Emitted, OutputFile
from planner.formats.registry import load_format, written_names
from planner.launchers import LAUNCHERS, TORCHRUN, load_launcher
from planner.report.emitted import PlanText, output_files
from planner.report.files import write_folder
from planner.spec.model import Biases
from planner.spec.strategy import Strategy

HOSTILE = (
    '"""\nimport os; os.system("touch PWNED")\n"""',
    "\\N{x} \\x \\u12",
    "$(touch PWNED) `touch PWNED` ${HOME} $HOME $$(X)",
    "'; touch PWNED; '",
    "\"; touch PWNED; #\n#SBATCH --wrap='touch PWNED'",
    "END_OF_FILE\ntouch PWNED",
    "```\n<script>alert(1)</script> | [x](javascript:1) `",
    "a: !!python/object/apply:os.system ['touch PWNED']\n- *b & c",
    "../../PWNED\\..\x1b]0;PWNED\x07\x00\u202e",
    "-rf --help",
)
NAMES = st.one_of(st.sampled_from(HOSTILE), st.text(max_size=60))
TOOLS = ("bash", "dirname", "mktemp", "mkdir", "cat", "chmod")
STUBS = ("torchrun", "accelerate", "deepspeed", "python", "python3", "touch", "curl", "sh")
NOTE = """#!/bin/bash
printf '%s\\0' "${0##*/}" "$@" END >> "$NOTES"
"""
SRUN = """#!/bin/bash
while [[ "$1" == --* ]]; do shift; done
SLURM_NODEID=0 exec "$@"
"""
LLAMA = {"family": "llama", "gated_mlp": True, "activation": "silu", "norm": "rmsnorm"}
MODEL = small_model(**LLAMA, biases=Biases(), max_seq_len=4096)


def case_of(format_name: str, name: str) -> tuple[Context, Strategy]:
    """A plan that the format expresses, on a cluster and of a model of that name."""
    made = load_format(format_name)
    context = context_of(model=replace(MODEL, name=name), framework=made.framework)
    cluster = context.cluster
    domain, fabric = (replace(each, name=name) for each in (cluster.node.scale_up, cluster.fabric))
    node = replace(cluster.node, name=name, scale_up=domain)
    cluster = replace(cluster, name=name, node=node, fabric=fabric)
    stage = 1 if format_name in ("megatron", "bridge") else 3
    strategy = strategy_of(dp=8, zero_stage=stage, num_micro_batches=2)
    return replace(context, cluster=cluster), strategy


def written(format_name: str, launcher: str, name: str) -> tuple[Emitted, tuple[OutputFile, ...]]:
    context, strategy = case_of(format_name, name)
    made = load_format(format_name)
    result = estimate(context, strategy)
    plan = Plan(context=context, strategy=strategy, estimate=result, is_optimal=True)
    text = PlanText(text=plan_text(plan, model=name, cluster=name), model=name, cluster=name)
    emitted = made.emit(context, strategy)
    files = output_files(made, load_launcher(launcher), context, strategy, text)
    return emitted, tuple(replace(each, text=filled(emitted, each.text)) for each in files)


def filled(emitted: Emitted, text: str) -> str:
    """The file, or the one that carries it, with the keys that the user adds."""
    for each in emitted.open_keys:
        text = re.sub(
            r"^( *)\{$", rf'\1{{\n\1  "{each.key}": 1e-4,', text, count=1, flags=re.MULTILINE
        )
    return text


@pytest.fixture
def stubs(tmp_path: Path) -> Path:
    """A folder with the tools that scripts use, and programs that note their words."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in TOOLS:
        (folder / tool).symlink_to(shutil.which(tool) or tool)
    bodies = dict.fromkeys(STUBS, NOTE)
    bodies |= {"srun": SRUN, "scontrol": "#!/bin/bash\necho node0\n"}
    for name, body in bodies.items():
        (folder / name).write_text(body)
        (folder / name).chmod(0o755)
    return folder


def values_of(emitted: Emitted) -> dict[str, str]:
    return {name: f"$(touch PWNED) 'x' \"{name}\" \\n" for name in emitted.variables} | {
        "NODE_RANK": "0",
        "MASTER_ADDR": "node0",
        "MASTER_PORT": "29500",
    }


def expected(emitted: Emitted, values: dict[str, str]) -> list[str]:
    known = {"NNODES": "1", "NPROC_PER_NODE": "8", **values}
    words = (*(emitted.own_launcher or TORCHRUN), *emitted.words)
    return [re.sub(r"\$\{(\w+)\}", lambda found: known[found[1]], word) for word in words]


def script_of(launcher: str, folder: Path) -> list[str]:
    if launcher in ("torchrun", "slurm"):
        return ["bash", {"torchrun": "launch.sh", "slurm": "launch.sbatch"}[launcher]]
    if launcher == "skypilot":
        return ["bash", "-c", yaml.safe_load((folder / "task.yaml").read_text())["run"]]
    trainer = yaml.safe_load((folder / "trainjob.yaml").read_text())["spec"]["trainer"]
    script: str = trainer["args"][0]
    assert trainer["command"] == ["bash", "-c"]
    return ["bash", "-c", re.sub(r"\$\$", "$", script)]


def run(launcher: str, folder: Path, stubs: Path, values: dict[str, str]) -> list[list[str]]:
    notes = folder.parent / "notes"
    notes.write_bytes(b"")
    env = {"PATH": str(stubs), "NOTES": str(notes), "TMPDIR": str(folder.parent)}
    env |= dict.fromkeys(("PET_MASTER_ADDR", "SLURM_JOB_NODELIST", "SKYPILOT_NODE_IPS"), "node0")
    env |= {"SKYPILOT_NODE_RANK": "0", **values}
    how = {"cwd": folder, "capture_output": True, "text": True, "timeout": 30, "check": False}
    done = subprocess.run(script_of(launcher, folder), env=env, **how)
    assert done.returncode == 0, done.stderr
    *calls, rest = notes.read_bytes().decode().split("\0END\0")
    assert rest == ""
    return [call.split("\0") for call in calls]


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("format_name", written_names())
def test_only_the_launcher_runs_with_its_own_words(
    format_name: str, launcher: str, stubs: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "out $(touch PWNED) put"
    for number, name in enumerate(HOSTILE[::3]):
        emitted, files = written(format_name, launcher, name)
        write_folder(folder, files, force=number > 0)
        assert {path.name for path in folder.iterdir()} == {file.name for file in files}
        values = values_of(emitted)
        assert run(launcher, folder, stubs, values) == [expected(emitted, values)]
        assert not list(tmp_path.rglob("PWNED"))


@pytest.mark.parametrize("format_name", written_names())
@given(name=NAMES)
@settings(max_examples=12)
def test_documents_hold_the_name_as_a_text(format_name: str, name: str) -> None:
    _, files = written(format_name, "slurm", name)
    texts = {file.name: file.text for file in files}
    inputs = yaml.safe_load(texts["plan.yaml"])["inputs"]
    assert (inputs["model"], inputs["cluster"]) == (name, name)
    readme = texts["README.md"]
    readme.encode()
    check = re.search(r"\n(`{3,})sh\n(planner check .*)\n\1\n$", readme, re.DOTALL)
    assert check is not None
    assert shlex.split(check[2])[4::2][:2] == [name, name]
    head = readme[: check.start()]
    assert re.search(r"(?<!\\)<script>", head) is None
    for line in head.splitlines():
        assert line.isprintable()
    directives = [line for line in texts["launch.sbatch"].splitlines() if "#SBATCH" in line]
    assert all(re.fullmatch(r"#SBATCH --[a-z-]+(=[a-z0-9-]+)?", line) for line in directives)


@given(name=NAMES)
@settings(max_examples=40)
def test_python_files_differ_by_a_literal_and_an_identifier(name: str) -> None:
    def tree(of: str) -> str:
        context, strategy = case_of("torchtitan", of)
        emitted = load_format("torchtitan").emit(context, strategy)
        config = emitted.words[emitted.words.index("--config") + 1]
        (text,) = (file.text for file in emitted.files if file.name.endswith(".py"))
        assert re.fullmatch(r"[a-z0-9_]+", config)
        parsed = ast.parse(text)
        keywords = (node for node in ast.walk(parsed) if isinstance(node, ast.keyword))
        (flavor,) = (word.value for word in keywords if word.arg == "flavor")
        assert isinstance(flavor, ast.Constant)
        assert flavor.value == config
        flavor.value = "flavor"
        parsed.body[-1].name = "config"
        return ast.dump(parsed)

    assert tree(name) == tree("plain")
