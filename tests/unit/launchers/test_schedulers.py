"""Launchers: scripts that bash runs hand the right words, ranks and variables to torchrun."""

import re
from dataclasses import replace
from typing import Any

import pytest
import yaml
from contexts import context_of, strategy_of
from fake_format import FAKE_EMITTED

from planner.catalog.models import load_model
from planner.check.folder import check_folder
from planner.errors import ExpressError, InputError
from planner.formats.format import Emitted, OutputFile
from planner.formats.registry import load_format
from planner.launchers import LAUNCHERS, MAX_SCRIPT_BYTES, load_launcher
from planner.query.from_file import Request

PRINT = """\
printf '%s\\n' "$@" "env $CUDA_DEVICE_MAX_CONNECTIONS $WORDS" "config $(cat config.json)"
"""
COMMAND = ["my train.py", "--config", "config.json", "--say", "it's $HOME", "--in=/data/x y"]
GIVEN = {"SCRIPT": "my train.py", "DATA": "/data"}
SURROUNDINGS = ["env 1 two words", 'config {"price": "$$5 $(HOME) ${HOME} `id`"}']


def torchrun_words(nodes: int, per_node: int, rank: int, address: str) -> list[str]:
    return [
        f"--nnodes={nodes}",
        f"--nproc-per-node={per_node}",
        f"--node-rank={rank}",
        "--rdzv-backend=static",
        f"--rdzv-endpoint={address}:29500",
    ]


def expected(nodes: int, per_node: int, rank: int, address: str) -> list[str]:
    return [*torchrun_words(nodes, per_node, rank, address), *COMMAND, *SURROUNDINGS]


@pytest.fixture
def made() -> Any:
    """Files of a launcher for a plan on so many GPUs of nodes of eight."""

    def make(name: str, *, gpus: int = 16, emitted: Emitted = FAKE_EMITTED, **changes: Any) -> Any:
        context = context_of(**{"cluster": "4xdgx-h100", **changes})
        files = load_launcher(name).files(emitted, context, strategy_of(dp=gpus))
        return {file.name: file for file in files}

    return make


@pytest.fixture
def launched(made: Any, written: Any, program: Any, bash: Any) -> Any:
    """Write a plan's files and run a script of them, where a program prints what it is given."""

    def run(
        launcher: str,
        *,
        prints: str = PRINT,
        starts: str = "torchrun",
        given: Any = None,
        **plan: Any,
    ) -> Any:
        program(starts, prints)
        files = (*plan.get("emitted", FAKE_EMITTED).files, *made(launcher, **plan).values())
        folder = written(files)
        if launcher == "slurm":  # is submitted in its folder; the others run from anywhere
            return bash("launch.sbatch", environment=given, folder=folder)
        return bash(str(folder / "launch.sh"), environment=given)

    return run


def test_unknown_launchers_are_refused_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"unknown launcher 'slrum'.*did you mean slurm"):
        load_launcher("slrum")


@pytest.mark.parametrize("name", LAUNCHERS)
def test_the_same_plan_gives_the_same_bytes(made: Any, name: str) -> None:
    assert made(name) == made(name)


@pytest.mark.parametrize("name", LAUNCHERS)
def test_scripts_parse(made: Any, written: Any, bash: Any, name: str) -> None:
    files = made(name)
    folder = written(tuple(files.values()))
    for script in (each for each in files if each.endswith((".sh", ".sbatch"))):
        assert bash("-n", script, folder=folder).stderr == ""


def test_torchrun_gets_its_words_from_any_folder(launched: Any) -> None:
    done = launched("torchrun", given=GIVEN | {"NODE_RANK": "1", "MASTER_ADDR": "first"})
    assert done.stderr == ""
    assert done.stdout.splitlines() == expected(2, 8, 1, "first")


def test_one_node_needs_no_address(launched: Any) -> None:
    assert launched("torchrun", gpus=4).stdout.splitlines() == expected(1, 4, 0, "127.0.0.1")


def test_all_missing_variables_are_named_before_anything_starts(launched: Any) -> None:
    done = launched("torchrun", prints="echo started", given={})
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        "launch.sh: SCRIPT is not set: the user's training script",
        "launch.sh: DATA is not set: folder of the data",
        "launch.sh: NODE_RANK is not set: number of this node, counted from 0",
        "launch.sh: MASTER_ADDR is not set: host name or address of node 0",
    ]


def test_a_launcher_of_the_framework_replaces_torchrun(made: Any, launched: Any) -> None:
    own = ("accelerate", "launch", "--machine_rank", "${NODE_RANK}", "--at=${MASTER_ADDR}")
    plan: dict[str, Any] = {"gpus": 8, "emitted": replace(FAKE_EMITTED, own_launcher=own)}
    assert "torchrun" not in made("torchrun", **plan)["launch.sh"].text
    done = launched("torchrun", starts="accelerate", **plan)
    words = ["launch", "--machine_rank", "0", "--at=127.0.0.1"]
    assert done.stdout.splitlines() == [*words, *COMMAND, *SURROUNDINGS]


@pytest.mark.parametrize("name", LAUNCHERS)
def test_what_launchers_set_is_never_asked_of_the_user(made: Any, name: str) -> None:
    variables = {**FAKE_EMITTED.variables, "NODE_RANK": "a rank", "MASTER_PORT": "a port"}
    emitted = replace(FAKE_EMITTED, variables=variables)
    assert made(name, emitted=emitted) == made(name)


SRUN = """\
[[ "$1 $2" == "--ntasks-per-node=1 --cpu-bind=none" ]] || exit 9
for node in 0 1; do SLURM_NODEID=$node "${@:3}"; done
"""


def test_slurm_starts_every_node_with_its_rank(launched: Any, program: Any) -> None:
    program("srun", SRUN)
    program("scontrol", '[[ "$*" == "show hostnames n[7-8]" ]] && printf "n7\\nn8\\n"')
    done = launched("slurm", given=GIVEN | {"SLURM_JOB_NODELIST": "n[7-8]"})
    assert done.stderr == ""
    assert done.stdout.splitlines() == expected(2, 8, 0, "n7") + expected(2, 8, 1, "n7")


def test_slurm_stops_before_srun_where_a_variable_is_missing(launched: Any) -> None:
    done = launched("slurm", starts="srun", prints="echo started", given={"DATA": "/data"})
    assert (done.returncode, done.stdout) == (2, "")
    assert "SCRIPT is not set" in done.stderr


def test_slurm_says_where_to_submit(made: Any, written: Any, bash: Any) -> None:
    folder = written(tuple(made("slurm").values()))
    done = bash(str(folder / "launch.sbatch"))
    assert done.returncode == 2
    assert "submit the job in the folder of both" in done.stderr


def expand(text: str, environment: dict[str, str]) -> str:
    """What Kubernetes makes of an argument: ``$$`` is one ``$``, ``$(NAME)`` a known variable."""

    def replaced(match: re.Match[str]) -> str:
        return "$" if match[0] == "$$" else environment.get(match[1], match[0])

    return re.sub(r"\$\$|\$\(([^)]*)\)", replaced, text)


def test_a_trainjob_writes_its_files_and_starts(
    made: Any, program: Any, bash: Any, tmp_path: Any
) -> None:
    program("torchrun", PRINT + "cat more/extra.txt")
    job = yaml.safe_load(made("kubernetes")["trainjob.yaml"].text)
    trainer = job["spec"]["trainer"]
    environment = {
        "SCRIPT": "my train.py",
        "DATA": "/data",
        "PET_NODE_RANK": "1",
        "PET_MASTER_ADDR": "job-0-0",
        "HOME": "replaced by Kubernetes",
        "mktemp -d": "replaced by Kubernetes",
    }
    words = [expand(word, environment) for word in (*trainer["command"], *trainer["args"])]
    assert words[0] == "bash"
    container = {**environment, "TMPDIR": str(tmp_path)}
    container.pop("mktemp -d")
    container["HOME"] = str(tmp_path)
    done = bash(*words[1:], environment=container)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [*expected(2, 8, 1, "job-0-0"), "END_OF_FILE", "it's"]
    assert [each["name"] for each in trainer["env"]] == ["SCRIPT", "DATA"]


@pytest.mark.parametrize(
    ("cluster", "resource"),
    [
        ("1xdgx-h100", "nvidia.com/gpu"),
        ("1xhgx-mi300x", "amd.com/gpu"),
        ("1xhls-gaudi2", "habana.ai/gaudi"),
    ],
)
def test_a_trainjob_asks_for_the_vendors_resource(made: Any, cluster: str, resource: str) -> None:
    job = yaml.safe_load(made("kubernetes", gpus=8, cluster=cluster)["trainjob.yaml"].text)
    assert job["spec"]["trainer"]["resourcesPerNode"] == {"limits": {resource: 8}}


@pytest.mark.parametrize(
    ("name", "cluster", "message"),
    [
        ("kubernetes", "4xtpu-v5p-host", "no resource name is known for the accelerator tpu-v5p"),
        ("skypilot", "1xhgx-h800", "no name for the accelerator h800-sxm"),
    ],
)
def test_accelerators_without_a_name_are_refused_beside_all_else(
    name: str, cluster: str, message: str
) -> None:
    launcher, context = load_launcher(name), context_of(cluster=cluster)
    (problem,) = launcher.problems(context, strategy_of(dp=2))
    assert message in problem
    assert len(launcher.problems(context, strategy_of(dp=13))) == 2


@pytest.mark.parametrize(
    ("given", "run"),
    [({"MOCK": "1"}, ["--data", "made up"]), ({"DATA": "/a b"}, ["--data", "/a b"]), ({}, [])],
)
def test_words_of_the_run_and_of_a_file(
    launched: Any, given: dict[str, str], run: list[str]
) -> None:
    file = OutputFile(name="a.args", text="--x 'it'\\''s one'\n")
    run_and_mock = {"run": ("--data", "${DATA}"), "mock": ("--data", "made up")}
    words = {"command": ("t.py",), "arguments": file.name, **run_and_mock}
    emitted = Emitted(files=(file,), variables={"DATA": "data"}, **words)
    done = launched(
        "torchrun", prints="printf '%s\\n' \"$@\"", given=given, gpus=8, emitted=emitted
    )
    assert done.stdout.splitlines()[5:] == (["t.py", *run, "--x", "it's one"] if run else [])
    assert done.stderr == ("" if run else "launch.sh: DATA is not set: data\n")


@pytest.mark.parametrize("node", ["dgx-h100", "dgx-b200", "pcie-8x-rtx5090", "hgx-rubin"])
def test_planners_check_has_no_words_for_the_script_that_planner_wrote(
    written: Any, node: str
) -> None:
    context = context_of(model=load_model("llama3.2-1b"), cluster=f"1x{node}")
    plan = strategy_of(dp=4, tp=2, num_micro_batches=4, layers_per_stage=(16,))
    emitted = load_format("megatron").emit(context, plan)
    launch = load_launcher("torchrun").files(emitted, context, plan)
    folder = written((*emitted.files, *launch))
    asked = Request(model="llama3.2-1b", cluster=f"1x{node}", with_advice=False)
    (result,) = check_folder(str(folder), asked)
    assert (result.num_gpus, result.findings) == (8, ())


def test_kubernetes_refuses_files_too_large_for_an_argument(made: Any) -> None:
    config = replace(FAKE_EMITTED.files[0], text="x" * MAX_SCRIPT_BYTES)
    with pytest.raises(ExpressError, match="at most 65536 bytes"):
        made("kubernetes", emitted=replace(FAKE_EMITTED, files=(config,)))


def test_skypilot_starts_every_node_with_its_rank(
    made: Any, written: Any, program: Any, bash: Any
) -> None:
    program("torchrun", PRINT)
    files = made("skypilot")
    folder = written((*FAKE_EMITTED.files, *files.values()))
    task = yaml.safe_load(files["task.yaml"].text)
    assert task["num_nodes"] == 2
    assert task["resources"] == {"accelerators": "H100:8"}
    assert task["envs"] == {"SCRIPT": None, "DATA": None}
    node = {"SKYPILOT_NODE_RANK": "1", "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2"}
    done = bash("-c", task["run"], environment=GIVEN | node, folder=folder)
    assert done.stdout.splitlines() == expected(2, 8, 1, "10.0.0.1")
