"""A job's files are read, mended and written as the set that they are."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from in_process import planner

from planner.check.check import check_file
from planner.check.fix import FixedFile, fix_file
from planner.errors import ExpressError
from planner.formats.format import read_source
from planner.query.from_file import Request, read_assumed

TEXTS = yaml.safe_load(Path(__file__).with_name("job_files.yaml").read_text("utf-8"))
AUTO: dict[str, Any] = json.loads(TEXTS["ds.json"])
ARGUMENTS, SCRIPT = TEXTS["args.yaml"], TEXTS["run.sh"]
H200 = Request(cluster="8xh200", seq_len=1024, with_advice=False)
QWEN = replace(H200, model="qwen3-32b")
FORMS = pytest.mark.parametrize("name", ["lf.yaml", "args.yaml", "run.sh"])


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def put(name: str, text: str = "", **deepspeed: Any) -> str:
    content = {**AUTO, "zero_optimization": {"stage": 2}, **deepspeed}
    put_text("ds.json", json.dumps(content))
    return put_text(name, text or TEXTS.get(name, ""))


def put_text(name: str, text: str) -> str:
    Path(name).write_text(text)
    return name


def fixed(name: str, request: Request = H200) -> FixedFile:
    return fix_file(read_source(name), request)


@FORMS
def test_the_stage_is_changed_in_the_file_that_states_it(name: str) -> None:
    put(name)
    (found,) = [one for one in check_file(name, H200).findings if one.rule == "memory.fits"]
    assert found.message.endswith("ZeRO 2 to 3")
    made = fixed(name)
    (change,) = made.answer.repaired[0].changes
    assert (change.path, change.line, change.key) == ("ds.json", 1, "zero_optimization.stage")
    assert (change.before, change.after) == (2, 3)
    peak = made.answer.repaired[0].plan.estimate.memory.peak_bytes
    assert peak == pytest.approx(75.5 * 2**30, rel=2e-3)
    assert made.fixed.text == TEXTS[name]
    assert json.loads(made.fixed.beside["ds.json"])["zero_optimization"] == {"stage": 3}


@FORMS
def test_a_key_without_effect_in_the_named_file_is_a_warning_there(name: str) -> None:
    zero = {"zero_optimization": {"stage": 3}}
    without = check_file(put(name, **zero), H200)
    put(name, **zero, tensor_parallel={"tp": {"tp_size": 4}})
    result = check_file(name, H200)
    (found,) = [one for one in result.findings if one.severity != "note"]
    assert (found.rule, found.path) == ("deepspeed.sizes_take_effect", "ds.json")
    assert "0.19.8" in found.message
    assert result.figures == without.figures is not None


def test_both_files_are_written_and_then_clean(folder: Path) -> None:
    put("args.yaml", ARGUMENTS.replace("size: 1", "size: 64"), gradient_accumulation_steps=4)
    command = ("check", "args.yaml", "--cluster", "8xh200", "--seq-len", "4k")
    assert planner(*command, "--fix", "--out", "copy.yaml").code != 0
    assert not (folder / "copy.yaml").exists()
    assert planner(*command, "--fix", "--apply").code == 0
    assert json.loads(Path("ds.json").read_text())["gradient_accumulation_steps"] == "auto"
    assert planner(*command).code == 0


@pytest.mark.parametrize("name", ["args.yaml", "run.sh"])
@pytest.mark.parametrize(
    ("deepspeed", "said"),
    [
        ({"gradient_accumulation_steps": 4}, "gradient_accumulation_steps 4"),
        ({"train_batch_size": 64}, "train_batch_size 64"),
        ({"optimizer": {"type": "AdamW", "params": {"lr": 1e-5}}}, "optimizer.params.lr 1e-05"),
        ({"gradient_clipping": 0.5}, "gradient_clipping 0.5"),
        ({"gradient_accumulation_steps": 2, "train_batch_size": 16, "gradient_clipping": 1}, ""),
    ],
)
def test_numbers_of_the_deepspeed_file_are_those_of_the_arguments(
    name: str, deepspeed: dict[str, Any], said: str
) -> None:
    put(name, **deepspeed)
    findings = check_file(name, Request(num_gpus=8)).findings
    found = [one.message for one in findings if one.rule == "trainer.deepspeed_agrees"]
    assert len(found) == bool(said)
    assert all(f"ds.json has {said}," in each for each in found)


def test_a_command_says_what_a_file_says() -> None:
    put("args.yaml")
    put("run.sh")
    of_file, of_command = (check_file(name, H200) for name in ("args.yaml", "run.sh"))
    assert of_file.format == of_command.format == "trainer"
    assert of_command.num_gpus == 8
    assert of_file.figures == of_command.figures
    named = of_command.findings[0]
    assert (named.rule, named.line) == ("trainer.unknown_key", 1)


@pytest.mark.parametrize(
    "command",
    [
        "deepspeed main.py --per_device_train_batch_size 4 --deepspeed --output_dir out",
        "python run_clm_no_trainer.py --per_device_train_batch_size 4 --output_dir out",
        "python generate.py --output_dir out --seed 1",
        "trl sft --per_device_train_batch_size 4 --dataset_name a/b --model_name_or_path c/d",
    ],
)
def test_commands_of_others_are_not_trainers(command: str) -> None:
    assert check_file(put_text("run.sh", f"{command}\n"), Request()).format != "trainer"


@pytest.mark.parametrize("more", ["--use_lora True", "--vision_tower a/b", "--num_generations 8"])
def test_what_plans_do_not_price_of_a_script_is_said(more: str) -> None:
    put("run.sh", SCRIPT.replace("--bf16", f"{more} --bf16"))
    result = check_file("run.sh", H200)
    assert "job.unpriced" in {one.rule for one in result.findings}
    assert result.figures is None


def test_a_file_that_is_not_found_leaves_the_stage_open() -> None:
    put("args.yaml", ARGUMENTS.replace("ds.json", "other.json"))
    result = check_file("args.yaml", H200)
    (found,) = [one for one in result.findings if one.kind == "named_file"]
    assert (found.severity, found.line) == ("warning", 7)
    assert result.figures is None


@pytest.mark.parametrize("assumed", [["recompute=full"], ["recompute=none"], []])
def test_what_is_assumed_is_not_written(assumed: list[str]) -> None:
    """A file with one "auto" has no key for recomputation, and needs none."""
    put("unused", bf16={"enabled": True}, train_micro_batch_size_per_gpu=1)
    known = read_assumed([*assumed, "optimizer=adam"])
    request = replace(QWEN, seq_len=1024 if assumed else 2048, assumed=known)
    found = [one.message for one in check_file("ds.json", request).findings]
    assert any("ZeRO 2 to 3" in each for each in found) or not assumed
    assert not any("no keys" in each for each in found)
    made = fixed("ds.json", request)
    content = json.loads(made.fixed.text)
    assert content["zero_optimization"] == {"stage": 3}
    assert "training_script" not in content
    again = check_file(put_text("ds.json", made.fixed.text), request)
    assert not [one for one in again.findings if one.severity == "error"]


LAUNCHED = "num_processes: 8\nmixed_precision: bf16\ndistributed_type: "
ZERO = "deepspeed_config: {zero_stage: 2}\n"
SHARDS = "fsdp_config: {fsdp_version: 1, fsdp_sharding_strategy: SHARD_GRAD_OP}\n"


@pytest.mark.parametrize(
    ("name", "text", "key"),
    [
        ("ds.json", "", "zero_optimization.stage"),
        ("zero.yaml", f"{LAUNCHED}DEEPSPEED\n{ZERO}", "deepspeed_config.zero_stage"),
        ("fsdp.yaml", f"{LAUNCHED}FSDP\n{SHARDS}", "fsdp_config.fsdp_sharding_strategy"),
    ],
)
def test_a_repair_knows_what_the_check_was_told(name: str, text: str, key: str) -> None:
    put("unused", bf16={"enabled": True}, train_micro_batch_size_per_gpu=1)
    if text:
        put_text(name, text)
    assumed = read_assumed(["recompute=full", "micro_batch=2", "optimizer=adam"])
    request = replace(QWEN, seq_len=8192, assumed=assumed)
    (found,) = [one for one in check_file(name, request).findings if one.rule == "memory.fits"]
    made = fixed(name, request)
    (change,) = (one for one in made.answer.repaired[0].changes if one.counts)
    assert (change.field, change.key, change.after) == ("zero_stage", key, 3)
    assert not any("recomputed" in each for each in made.assumed)
    peak = made.answer.repaired[0].plan.estimate.memory.peak_bytes
    assert f"nearest that fits, {peak / 2**30:.2f} GiB: ZeRO 2 to 3" in found.message


def test_a_repair_that_holds_where_the_script_recomputes_says_so() -> None:
    put("unused", bf16={"enabled": True}, train_micro_batch_size_per_gpu=1)
    request = replace(QWEN, seq_len=32768, assumed=read_assumed(["optimizer=adam"]))
    said = str(check_file("ds.json", request).findings)
    assert "even where all layers are recomputed" in said
    assert "dp 8 to 1, tp 1 to 8" in said
    made = fixed("ds.json", request)
    counted = [one for one in made.answer.repaired[0].changes if one.counts]
    assert [(one.field, one.before, one.after) for one in counted] == [("tp", 1, 8)]
    assert made.assumed[-1] == "all layers are recomputed"
    assert "training_script" not in made.fixed.text


@pytest.mark.parametrize(
    ("name", "mode", "key", "before", "after"),
    [
        ("local", "none", "training.local_batch_size", "= 4  # ours", "= 1  # ours"),
        ("local", "selective", "training.local_batch_size", "= 4  # ours", "= 2  # ours"),
        # Without accumulation of gradients no other micro-batch makes the same batch.
        ("old", "selective", "activation_checkpoint.mode", '"selective"', '"full"'),
        ("old", "none", "activation_checkpoint.mode", '"none"', '"full"'),
    ],
)
def test_a_toml_file_of_torchtitan_is_changed_at_its_keys(
    name: str, mode: str, key: str, before: str, after: str
) -> None:
    text = TEXTS["job.toml"].replace('"none"', f'"{mode}"')
    text = text.replace("local_batch", "batch") if name == "old" else text
    put_text("job.toml", text)
    request = Request(model="llama3-8b", cluster="1xdgx-h100", with_advice=False)
    (found,) = check_file("job.toml", request).findings
    assert "no keys" not in found.message
    made = fixed("job.toml", request)
    (change,) = (one for one in made.answer.repaired[0].changes if one.counts)
    assert change.key == key
    added = after + "\nglobal_batch_size = 32" if name == "local" else after
    assert made.fixed.text == text.replace(before, added)


def test_a_name_in_place_of_a_file_is_not_edited_in_a_command() -> None:
    Path("run.sh").write_text(
        "NPROC_PER_NODE=8 swift sft --model Qwen/Qwen3-32B --tuner_type full --deepspeed zero2 "
        "--dataset a --per_device_train_batch_size 1 --gradient_accumulation_steps 2\n"
    )
    with pytest.raises(ExpressError, match="a command's options are for you to change"):
        fixed("run.sh")


def test_what_agrees_in_the_named_file_stays() -> None:
    own = {"bf16": {"enabled": True}, "train_micro_batch_size_per_gpu": 1, "train_batch_size": 16}
    put("args.yaml", **own)
    made = fixed("args.yaml")
    after = json.loads(made.fixed.beside["ds.json"])
    assert after == {**AUTO, **own, "zero_optimization": {"stage": 3}}


def accelerated(kind: str, section: str) -> str:
    """The command of a script that Accelerate launches with a file of its own."""
    head = f"compute_environment: LOCAL_MACHINE\ndistributed_type: {kind}\n"
    Path("launch.yaml").write_text(head + section)
    command = SCRIPT.replace("torchrun --nproc_per_node 8", "accelerate launch --config_file {}")
    command = command.format("launch.yaml").replace(" --deepspeed ds.json", "")
    Path("run.sh").write_text(command)
    return command


def test_the_launchers_file_must_agree_and_says_how_many_processes() -> None:
    own = "deepspeed_config: {zero_stage: 3, gradient_accumulation_steps: 4}\nnum_processes: 7\n"
    accelerated("DEEPSPEED", own)
    result = check_file("run.sh", H200)
    (found,) = [one for one in result.findings if one.severity == "error"]
    key = "launch.yaml deepspeed_config.gradient_accumulation_steps"
    assert (found.rule, found.key, result.num_gpus) == ("trainer.deepspeed_agrees", key, 7)
    assert found.message.startswith("given 4, gradient_accumulation_steps is 2")


@pytest.mark.parametrize(
    ("kind", "key", "after"),
    [
        ("DEEPSPEED", "deepspeed_config.zero_stage", "  zero_stage: 3\n"),
        ("FSDP", "fsdp_config.fsdp_reshard_after_forward", "after_forward: true  # ours\n"),
    ],
)
def test_the_launchers_file_is_changed_where_it_states_the_stage(
    kind: str, key: str, after: str
) -> None:
    section = {
        "DEEPSPEED": "deepspeed_config:\n  zero_stage: 2\n",
        "FSDP": "fsdp_config:\n  fsdp_version: 2\n  fsdp_reshard_after_forward: false  # ours\n",
    }[kind]
    command = accelerated(kind, f"{section}mixed_precision: bf16\nnum_processes: 8\n")
    made = fixed("run.sh")
    (change,) = made.answer.repaired[0].changes
    assert (change.field, change.path, change.key) == ("zero_stage", "launch.yaml", key)
    assert made.fixed.text == command
    assert after in made.fixed.beside["launch.yaml"]


@pytest.mark.parametrize("program", TEXTS["adapters"])
def test_adapters_sharded_over_ten_gigabits_take_tens_of_seconds_a_step(program: str) -> None:
    """A public report of Llama 3 8B on two nodes: 90 s a step, and a second unsharded."""
    put_text("cluster.yaml", TEXTS["cluster.yaml"])
    text = TEXTS["adapters"][program] + "gradient_accumulation_steps: 1\n"
    put("whole.yaml", text)
    put("sharded.yaml", f"{text}deepspeed: ds.json\n", zero_optimization={"stage": 3})
    request = Request(cluster="cluster.yaml", with_advice=False)
    whole, sharded = (check_file(name, request) for name in ("whole.yaml", "sharded.yaml"))
    assert whole.figures.iter_time_s == pytest.approx(0.85, rel=0.15)
    assert sharded.figures.iter_time_s == pytest.approx(27.0, rel=0.3)
