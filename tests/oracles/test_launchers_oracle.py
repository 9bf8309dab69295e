"""Launch files against what takes them: torchrun's and SkyPilot's own parsers, the types of the
API that TrainJobs have, real processes, and sbatch's documented options."""

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from contexts import context_of, strategy_of
from kubeflow_trainer_api.models import TrainerV1alpha1TrainJob
from starts import free_port
from torch.distributed.launcher.api import LaunchConfig
from torch.distributed.run import config_from_args, get_args_parser, parse_args

from planner.cost.context import Context
from planner.formats.format import Emitted, OutputFile
from planner.formats.shell.launch import SWITCHES, WITH_VALUE
from planner.launchers import load_launcher
from planner.spec.strategy import Strategy

WORKER = Path(__file__).with_name("launched.py")
PLANS = [
    ("1xdgx-h100", 1),
    ("1xdgx-h100", 2),
    ("1xdgx-h100", 8),
    ("4xdgx-a100-640", 16),
    ("16xdgx-h100", 128),
    ("18xgb200-tray", 72),
    ("2xdgx-2", 32),
    ("128xhgx-mi300x", 1024),
]
"""Clusters, and the GPUs of a plan on them."""
SKYPILOT = Path(__file__).resolve().parents[2] / ".oracles" / "skypilot" / "bin" / "python"
NAMES = [f"{gpus} of {cluster}" for cluster, gpus in PLANS]
EMITTED = Emitted(
    files=(OutputFile(name="config.json", text='{"text": "$$ $(A) \'quoted\'"}\n'),),
    command=("${TRAIN_SCRIPT}", "${RESULTS}", "--config", "config.json", "--name", "it's $HOME"),
    environment={"SOME_SWITCH": "1"},
    variables={"TRAIN_SCRIPT": "path of the training script", "RESULTS": "folder for results"},
)


@pytest.fixture(params=PLANS, ids=NAMES)
def plan(request: Any) -> tuple[Context, Strategy]:
    cluster, gpus = request.param
    return context_of(cluster=cluster), strategy_of(dp=gpus)


def files_of(name: str, plan: tuple[Context, Strategy]) -> dict[str, str]:
    files = load_launcher(name).files(EMITTED, *plan)
    return {file.name: file.text for file in files}


def shape_of(plan: tuple[Context, Strategy]) -> tuple[int, int]:
    """Nodes and processes per node, from the cluster alone."""
    per_node = min(plan[1].num_gpus, plan[0].cluster.node.num_accelerators)
    return plan[1].num_gpus // per_node, per_node


def write(folder: Path, files: Sequence[OutputFile]) -> None:
    for file in files:
        (folder / file.name).write_text(file.text)


def torchrun_words(folder: Path, environment: dict[str, str]) -> list[str]:
    """What launch.sh hands to torchrun."""
    fake = folder / "bin" / "torchrun"
    fake.parent.mkdir()
    fake.write_text("#!/usr/bin/env bash\nprintf '%s\\0' \"$@\"\n")
    fake.chmod(0o755)
    path = f"{fake.parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", str(folder / "launch.sh")],
        env={"PATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.split("\0")[:-1]


def test_torchruns_own_parser_reads_the_plan_by_full_names_of_options(
    plan: tuple[Context, Strategy], tmp_path: Path
) -> None:
    write(tmp_path, load_launcher("torchrun").files(EMITTED, *plan))
    nodes, per_node = shape_of(plan)
    user = {"TRAIN_SCRIPT": "my train.py", "RESULTS": "/out", "HOME": str(tmp_path)}
    node = {"NODE_RANK": str(nodes - 1), "MASTER_ADDR": "node-0"}
    words = torchrun_words(tmp_path, {**user, **node})
    config, program, arguments = config_from_args(parse_args(words))
    assert isinstance(config, LaunchConfig)
    assert (config.min_nodes, config.max_nodes) == (nodes, nodes)
    assert config.nproc_per_node == per_node
    assert (config.rdzv_backend, config.rdzv_endpoint) == ("static", "node-0:29500")
    assert config.rdzv_configs["rank"] == nodes - 1
    assert program == sys.executable
    expected = ["my train.py", "/out", "--config", "config.json", "--name", "it's $HOME"]
    assert arguments == ["-u", *expected]
    options = {word.partition("=")[0] for word in words[: words.index("my train.py")]} - {"-u"}
    known = {name for action in get_args_parser()._actions for name in action.option_strings}
    assert options
    assert options - {program} <= known


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    """Start launch.sh of a folder as one node of a real job."""
    (tmp_path / "results").mkdir()
    tools = str(Path(sys.executable).parent)

    def run(**node: str) -> subprocess.Popen[str]:
        environment = {
            "PATH": f"{tools}:{os.environ['PATH']}",
            "HOME": str(tmp_path),
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "TRAIN_SCRIPT": str(WORKER),
            "RESULTS": str(tmp_path / "results"),
            **node,
        }
        return subprocess.Popen(
            ["bash", str(tmp_path / "launch.sh")],
            env=environment,
            cwd="/",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    return run


def finished(processes: list[subprocess.Popen[str]], folder: Path) -> dict[int, dict[str, Any]]:
    """What every rank wrote down, once all nodes are through."""
    try:
        for process in processes:
            output, _ = process.communicate(timeout=120)
            assert process.returncode == 0, output
    finally:
        for process in processes:
            process.kill()
    paths = (folder / "results").glob("*.json")
    return {int(path.stem): json.loads(path.read_text()) for path in paths}


def test_two_processes_run_with_their_environment_and_arguments(start: Any, tmp_path: Path) -> None:
    plan = context_of(cluster="4xdgx-h100"), strategy_of(dp=2)
    write(tmp_path, load_launcher("torchrun").files(EMITTED, *plan))
    seen = finished([start(MASTER_PORT=str(free_port()))], tmp_path)
    assert sorted(seen) == [0, 1]
    for rank, each in seen.items():
        assert (each["RANK"], each["LOCAL_RANK"]) == (str(rank), str(rank))
        assert (each["WORLD_SIZE"], each["SOME_SWITCH"]) == ("2", "1")
        assert each["arguments"] == ["--config", "config.json", "--name", "it's $HOME"]
        assert each["sum"] == 1.0


def test_ranks_follow_the_nodes_and_not_their_arrival(start: Any, tmp_path: Path) -> None:
    plan = context_of(cluster="2xsummit"), strategy_of(dp=12)
    write(tmp_path, load_launcher("torchrun").files(EMITTED, *plan))
    node = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "NPROC_PER_NODE": "1"}
    processes = [start(NODE_RANK=rank, **node) for rank in ("1", "0")]
    seen = finished(processes, tmp_path)
    groups = {rank: each["GROUP_RANK"] for rank, each in seen.items()}
    assert groups == {0: "0", 1: "1"}
    assert {each["WORLD_SIZE"] for each in seen.values()} == {"2"}


def sbatch_parser() -> argparse.ArgumentParser:
    """The options of sbatch's manual page that the project uses, with their kinds."""
    parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--job-name", required=True)
    for name in ("--nodes", "--ntasks-per-node", "--gpus-per-node"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--exclusive", action="store_true")
    return parser


def directives_of(script: str) -> list[str]:
    """What sbatch reads: lines up to the first that is neither comment nor blank."""
    words: list[str] = []
    for line in script.splitlines()[1:]:
        if line.strip() and not line.startswith("#"):
            break
        if line.startswith("#SBATCH"):
            words += shlex.split(line.removeprefix("#SBATCH"), comments=True)
    return words


def test_slurm_is_asked_for_the_nodes_of_the_plan(plan: tuple[Context, Strategy]) -> None:
    script = files_of("slurm", plan)["launch.sbatch"]
    assert script.startswith("#!")
    words = directives_of(script)
    assert len(words) == script.count("#SBATCH")
    asked = sbatch_parser().parse_args(words)
    assert (asked.nodes, asked.gpus_per_node) == shape_of(plan)
    assert asked.ntasks_per_node == 1
    assert asked.exclusive is (plan[1].num_gpus >= plan[0].cluster.node.num_accelerators)
    assert re.fullmatch(r"[a-z][a-z0-9-]*", asked.job_name)


def test_a_trainjob_is_what_its_api_takes(plan: tuple[Context, Strategy]) -> None:
    document = yaml.safe_load(files_of("kubernetes", plan)["trainjob.yaml"])
    job = TrainerV1alpha1TrainJob.from_dict(document)
    assert job is not None
    assert job.to_dict() == document, "the API drops fields it does not know"
    trainer = job.spec.trainer
    nodes, per_node = shape_of(plan)
    assert trainer is not None
    assert trainer.env is not None
    assert (trainer.num_nodes, trainer.num_proc_per_node) == (nodes, per_node)
    gpus, *network = document["spec"]["trainer"]["resourcesPerNode"]["limits"].values()
    assert gpus == per_node
    assert network in ([], [1])
    assert [each.name for each in trainer.env] == list(EMITTED.variables)
    assert re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", document["metadata"]["name"])


@pytest.fixture(scope="session")
def read_tasks(tmp_path_factory: pytest.TempPathFactory) -> Callable[[list[str]], list[Any]]:
    """What SkyPilot's own parser makes of tasks."""

    def read(texts: list[str]) -> list[Any]:
        home = str(tmp_path_factory.mktemp("home"))
        done = subprocess.run(
            [SKYPILOT, Path(__file__).with_name("skypilot_task.py")],
            input=json.dumps(texts),
            env={"HOME": home, "PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            check=True,
        )
        read: list[Any] = json.loads(done.stdout)
        return read

    return read


def test_skypilots_own_parser_reads_the_plan(read_tasks: Callable[[list[str]], list[Any]]) -> None:
    every = [(context_of(cluster=cluster), strategy_of(dp=gpus)) for cluster, gpus in PLANS]
    plans = [plan for plan in every if not load_launcher("skypilot").problems(*plan)]
    assert len(plans) >= 5
    texts = [files_of("skypilot", plan)["task.yaml"] for plan in plans]
    for plan, text, task in zip(plans, texts, read_tasks(texts), strict=True):
        nodes, per_node = shape_of(plan)
        assert task["num_nodes"] == nodes
        assert list(task["accelerators"].values()) == [per_node]
        assert task["envs"] == dict.fromkeys(EMITTED.variables, "given")
        written = yaml.safe_load(text)
        assert (task["name"], task["run"]) == (written["name"], written["run"])


def test_parsers_do_not_take_a_misspelt_field(read_tasks: Callable[[list[str]], list[Any]]) -> None:
    plan = context_of(cluster="4xdgx-a100-640"), strategy_of(dp=16)
    document = yaml.safe_load(files_of("kubernetes", plan)["trainjob.yaml"])
    document["spec"]["trainer"]["numNode"] = document["spec"]["trainer"].pop("numNodes")
    job = TrainerV1alpha1TrainJob.from_dict(document)
    assert job is not None
    assert job.to_dict() != document
    text = files_of("skypilot", plan)["task.yaml"]
    (task,) = read_tasks([text.replace("num_nodes:", "num_node:")])
    assert "num_nodes" in task["error"]
    assert parse_args(["--nproc-per-nod", "8", "train.py"]).nproc_per_node == "8"
    with pytest.raises(SystemExit):
        parse_args(["--rdzv-bakend", "c10d", "train.py"])


def test_torchruns_options_are_those_that_files_are_checked_for() -> None:
    named = [action for action in get_args_parser()._actions if action.option_strings]
    known = {True: set[str](), False: set[str]()}
    for action in named:
        known[action.nargs == 0] |= {name.replace("_", "-") for name in action.option_strings}
    assert known == {True: {*SWITCHES.split()}, False: {*WITH_VALUE.split()}}
