"""``planner plan`` on pools: what is shown, written and refused."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from yaml import safe_load as read_yaml

POOLS = """\
pools:
  fast: {node: dgx-h100, count: 1}
  slow: {node: dgx-a100-640, count: 1}
"""
SMALL = ("--global-batch", "16", "--tp", "8|4", "--micro-batch", "1")
MODEL = "llama3.1-8b"


@pytest.fixture
def mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mixed.yaml").write_text(POOLS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_answer_gives_faster_machines_more_layers_and_says_so(
    planner: Any, mixed: Path
) -> None:
    run = planner("plan", MODEL, "mixed.yaml", *SMALL, "--format", "json")
    assert run.code == 0, run.err
    found = json.loads(run.out)
    plans = found["plans"]
    assert [plan["iter_time_s"] for plan in plans] == sorted(plan["iter_time_s"] for plan in plans)
    assert {plan["kind"] for plan in plans} == {"pipeline", "replicas", "one pool"}
    assert found["best"] == next(i for i, plan in enumerate(plans) if plan["is_written"])
    pipeline = next(plan for plan in plans if plan["kind"] == "pipeline")
    layers = {part["pool"]: sum(part["layers_per_stage"]) for part in pipeline["pools"]}
    assert layers["fast"] > layers["slow"]
    assert sum(layers.values()) == 32
    replicas = next(plan for plan in plans if plan["kind"] == "replicas")
    shares = {part["pool"]: part["global_batch"] for part in replicas["pools"]}
    assert shares["fast"] > shares["slow"]
    assert sum(shares.values()) == 16
    for plan in plans:
        for part in plan["pools"]:
            assert part["peak_bytes"] < part["hbm_bytes"]
            assert part["busy_s"] <= plan["iter_time_s"]


def test_the_screen_says_first_what_to_run_and_what_each_pool_holds(
    planner: Any, mixed: Path
) -> None:
    run = planner("plan", MODEL, "mixed.yaml", *SMALL, "-v")
    assert run.code == 0, run.err
    lines = run.out.splitlines()
    assert lines[0].startswith("llama3.1-8b on mixed (1 dgx-h100 + 1 dgx-a100-640), batch 16")
    assert lines[1].startswith("Run it as one pipeline over 8 ")
    assert re.search(r"^fast +8 h100-sxm +\d", run.out, re.MULTILINE)
    assert "proved under the model" in run.out
    assert "no framework's files say that" in run.out
    assert lines[-1].endswith("--emit megatron --out run")


def test_a_pipeline_is_written_with_its_layers_and_the_numbers_of_nodes(
    planner: Any, mixed: Path
) -> None:
    run = planner("plan", MODEL, "mixed.yaml", *SMALL, "--emit", "megatron", "--out", "run")
    assert run.code == 0, run.err
    args = Path("run/megatron.args").read_text()
    (layout,) = re.findall(r"--pipeline-model-parallel-layout '?([^'\n]+)", args)
    numbers = [int(number or 1) for number in re.findall(r"t(?:\*(\d+))?", layout)]
    assert sum(numbers) == 32
    nodes = [line.split() for line in Path("run/nodes.txt").read_text().splitlines()[1:]]
    first_is_fast = numbers[0] > numbers[-1]
    assert [(rank, pool) for rank, pool, _ in nodes] == [
        ("0", "fast" if first_is_fast else "slow"),
        ("1", "slow" if first_is_fast else "fast"),
    ]
    assert "--node-rank=" in Path("run/launch.sh").read_text()
    readme = Path("run/README.md").read_text()
    assert f"| 0 | {nodes[0][1]} | {nodes[0][2]} | 0" in readme


@pytest.mark.parametrize(
    ("made", "file", "layers"),
    [
        ("bridge", "bridge.overrides", r"t(?:\*(\d+))?"),
        ("torchtitan", "torchtitan.args", None),
    ],
)
def test_other_formats_that_give_each_stage_its_layers_write_it_too(
    planner: Any, mixed: Path, made: str, file: str, layers: str | None
) -> None:
    run = planner("plan", MODEL, "mixed.yaml", *SMALL, "--emit", made, "--out", "run")
    assert run.code == 0, run.err
    text = Path("run", file).read_text()
    saved = read_yaml(Path("run/plan.yaml").read_text())["strategy"]["layers_per_stage"]
    if layers:
        (layout,) = re.findall(r"pipeline_model_parallel_layout=\W*([\w*|]+)", text)
        found = [int(number or 1) for number in re.findall(layers, layout)]
    else:
        (parts,) = re.findall(r"module_fqns_per_model_part (.+)", text)
        found = [part.count("layers.") for part in parts.split()]
    assert found == saved
    assert len(Path("run/nodes.txt").read_text().splitlines()) == 3


def test_no_file_is_proposed_where_none_can_be_written(planner: Any, mixed: Path) -> None:
    run = planner("plan", "gpt3-xl", "mixed.yaml", "--global-batch", "1", "--tp", "8")
    assert "Run it on fast alone" in run.out
    assert "Next:" not in run.out
    Path("sizes.yaml").write_text(POOLS.replace("dgx-a100-640, count: 1", "perlmutter, count: 2"))
    run = planner("plan", MODEL, "sizes.yaml", *SMALL[:2], "--tp", "4", "--micro-batch", "1")
    assert "Run it as one pipeline" in run.out
    assert "Next:" not in run.out


@pytest.mark.parametrize(
    "options",
    [
        ("--versus", "precision=fp16"),
        ("--objective", "cost"),
        ("--format", "csv"),
        ("--framework", "any"),
        ("--schedule", "gpipe"),
        ("--placement", "any"),
        ("--host-memory", "512GiB"),
        ("--space",),
        ("--frontier",),
        ("--emit", "megatron", "--out", "run", "--launcher", "slurm"),
    ],
    ids=lambda options: options[0],
)
def test_what_holds_for_equal_machines_only_is_refused_by_name(
    planner: Any, mixed: Path, options: tuple[str, ...]
) -> None:
    run = planner("plan", MODEL, "mixed.yaml", *options)
    assert run.code == 2
    assert run.out == ""
    assert "not on mixed machines yet" in run.err
    named = options[-2] if options[0] == "--emit" else options[0]
    assert named in run.err
    assert not list(mixed.glob("run/*"))


def test_formats_that_cannot_say_which_machine_holds_what_are_refused(
    planner: Any, mixed: Path
) -> None:
    options = ("--global-batch", "16", "--emit", "deepspeed", "--out", "run")
    run = planner("plan", "gpt3-xl", "mixed.yaml", "--tp", "1", *options)
    assert run.code == 4
    assert "no file of it says which machine holds which layers" in run.err
    assert not Path("run").exists()


@pytest.mark.parametrize(
    "command",
    [
        ("why", MODEL, "mixed.yaml", "--tp", "8"),
        ("sensitivity", MODEL, "mixed.yaml"),
        ("scale", MODEL, "mixed.yaml"),
        ("size", MODEL, "mixed.yaml"),
        ("memory", MODEL, "mixed.yaml"),
        ("largest", MODEL, "mixed.yaml"),
        ("collective", "all-reduce", "1GB", "mixed.yaml"),
        ("job", MODEL, "mixed.yaml", "--tokens", "1T", "--objective", "cost"),
        ("hardware", "mixed.yaml"),
        ("calibrate", "mixed.yaml", "gemm.csv"),
        ("check", "run.sh", "--model", MODEL, "--cluster", "mixed.yaml"),
        ("repair", "run.sh", "mixed.yaml", "--model", MODEL),
        ("compare", "run.log", "--cluster", "mixed.yaml"),
        ("sweep", "sweep.yaml"),
        ("report", MODEL, "mixed.yaml", "--out", "page.html"),
    ],
    ids=lambda command: command[0],
)
def test_no_other_command_takes_pools_for_equal_machines(
    planner: Any, mixed: Path, command: tuple[str, ...]
) -> None:
    options = "--tensor-model-parallel-size 8 --micro-batch-size 1 --global-batch-size 16"
    Path("run.sh").write_text(f"torchrun pretrain_gpt.py {options}\n")
    Path("sweep.yaml").write_text(f"model: {MODEL}\ncluster: mixed.yaml\n")
    Path("run.log").write_text("iteration 1/ 2 | elapsed time per iteration (ms): 100.0 |\n")
    Path("gemm.csv").write_text("m,n,k,tflops\n8192,8192,8192,650\n")
    run = planner(*command)
    assert run.code == 2, (run.out, run.err)
    if command[0] == "job":
        assert "--objective: not on mixed machines yet" in run.err
    else:
        assert "`planner plan` and `planner job` alone take together" in run.err, run.err


def test_every_command_takes_one_pool(planner: Any, mixed: Path) -> None:
    run = planner("memory", MODEL, "mixed.yaml:slow", "--tp", "8")
    assert run.code == 0, run.err
    assert "a100" in run.out or "79.2" in run.out


@pytest.fixture
def saved(planner: Any, mixed: Path) -> Path:
    """A pipeline through both pools, saved and written."""
    words = ("--save", "plan.yaml", "--emit", "megatron", "--out", "run")
    assert planner("plan", MODEL, "mixed.yaml", *SMALL, *words).code == 0
    return mixed / "plan.yaml"


def job_of(planner: Any, *words: str) -> dict[str, Any]:
    run = planner("job", *words, "--format", "json")
    assert (run.code, run.err) == (0, ""), run.err
    return dict(json.loads(run.out))


def test_a_saved_pipeline_is_priced_as_it_was_found(planner: Any, saved: Path) -> None:
    answer = planner("plan", MODEL, "mixed.yaml", *SMALL, "--format", "json")
    found = json.loads(answer.out)
    first = found["plans"][found["best"]]
    of_file = job_of(planner, "plan.yaml", "--tokens", "1T")
    assert of_file["iter_time_s"] == pytest.approx(first["iter_time_s"], rel=1e-9)
    assert of_file["mfu"] == pytest.approx(first["mfu"])
    assert of_file == job_of(planner, "run", "--tokens", "1T")
    asked = job_of(planner, MODEL, "mixed.yaml", *SMALL, "--tokens", "1T")
    assert asked["elapsed_s"] == pytest.approx(of_file["elapsed_s"])
    assert of_file["plan"] is None
    machines = {one["node"]: one["gpus"] for one in of_file["inputs"]["machines"]}
    assert machines == {"dgx-h100": 8, "dgx-a100-640": 8}


@pytest.mark.parametrize("command", ["explain", "sensitivity", "exchange"])
def test_a_saved_pipeline_is_no_plan_on_equal_machines(
    planner: Any, saved: Path, command: str
) -> None:
    run = planner(command, "plan.yaml")
    assert run.code == 2
    assert "plan.yaml::pools: a pipeline through pools, which `planner check`" in run.err


def test_a_folder_of_a_pipeline_is_checked(planner: Any, saved: Path) -> None:
    run = planner("check", "run")
    assert run.code == 0, run.out
    assert "run/plan.yaml  plan, llama3.1-8b, mixed, 16 GPUs: nothing found" in run.out
    assert "run/megatron.args  megatron, llama3.1-8b, 16 GPUs" in run.out


def edited(saved: Path, pattern: str, text: str) -> None:
    saved.write_text(re.sub(pattern, text, saved.read_text(), count=1, flags=re.M))


@pytest.mark.parametrize(
    ("pattern", "text", "key", "message"),
    [
        (r"^pools: .*", "pools: {slow: 2, fast: 1}", "strategy.pp", "must fill the pools"),
        (r"^pools: .*", "pools: {slow: 1, fst: 1}", "pools", "two or more of fast, slow"),
        (r"^pools: .*", "pools: {slow: 1, fast: 0}", "pools.fast", "equal to 1; given 0"),
        (r"cluster: .*", "cluster: 2xdgx-h100", "inputs.cluster", "a cluster file with pools"),
        (r"placement: .*", "placement: tp-cp-ep-pp-dp", "placement", "allowed is tp-cp-ep-dp-pp"),
        (r"schedule: .*", "schedule: gpipe", "strategy.schedule", "allowed is 1f1b"),
        (r"num_micro_batches: .*", "num_micro_batches: 1", "num_micro_batches", "must be 16"),
        (r"layers_per_stage: .*", "layers_per_stage: [1, 1]", "layers_per_stage", "to 32 layers"),
    ],
)
def test_what_is_wrong_with_a_saved_pipeline_is_named(
    planner: Any, saved: Path, pattern: str, text: str, key: str, message: str
) -> None:
    edited(saved, pattern, text)
    for run in (planner("check", "plan.yaml"), planner("job", "plan.yaml", "--tokens", "1T")):
        said = " ".join((run.out + run.err).split())
        assert run.code in (1, 2), said
        assert key in said
        assert message in said


def test_a_stage_that_does_not_fit_its_pool_is_an_error(planner: Any, saved: Path) -> None:
    edited(saved, r"^  micro_batch: .*", "  micro_batch: 8")
    edited(saved, r"^  num_micro_batches: .*", "  num_micro_batches: 1")
    edited(saved, r"^  dp: .*", "  dp: 2")
    edited(saved, r"^  seq_len: .*", "  seq_len: 65536")
    run = planner("check", "plan.yaml")
    assert run.code == 1, run.out
    assert "error memory.fits strategy.layers_per_stage" in run.out
    assert re.search(r", in (slow|fast), needs \S+ GiB of \S+ GiB", " ".join(run.out.split()))


def test_a_plan_on_one_pool_is_saved_as_that_pools(planner: Any, mixed: Path) -> None:
    words = ("--framework", "deepspeed", "--global-batch", "16", "--save", "plan.yaml")
    assert planner("plan", "gpt3-xl", "mixed.yaml", "--tp", "1", *words).code == 0
    assert re.search(r"cluster: /.*mixed.yaml:(fast|slow)$", Path("plan.yaml").read_text(), re.M)
    assert planner("explain", "plan.yaml").code == 0
