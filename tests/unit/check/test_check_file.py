"""A file from first to last: recognised, its rules, legality, memory, network, advice."""

import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from fake_format import FORMAT

from planner.check.check import check_file
from planner.check.result import FileResult, exit_code
from planner.errors import InputError
from planner.formats import registry as formats
from planner.query.from_file import Request, read_assumed

Check = Callable[..., FileResult]
FINDINGS = yaml.safe_load(Path(__file__).with_name("findings.yaml").read_text("utf-8"))
SHARDED = "distributed_type: FSDP\nnum_processes: 8\nmixed_precision: bf16\n"
OPEN = Request(model="llama3-8b", cluster="1xdgx-h100", seq_len=8192, with_advice=False)
OPEN = replace(OPEN, ignore=("accelerate",))
"""A job whose training script decides what is recomputed."""


def said(result: FileResult) -> list[tuple[str, str, str, int]]:
    return [(one.rule, one.severity, one.key, one.line) for one in result.findings]


def test_a_sound_file_has_figures_and_no_findings(check_demo: Check) -> None:
    result = check_demo()
    assert said(result) == []
    assert (result.format, result.framework, result.num_gpus) == ("demo", "megatron", 16)
    assert result.figures is not None
    assert exit_code([result]) == 0


@pytest.mark.parametrize("name", FINDINGS)
def test_the_only_finding_of(check_demo: Check, name: str) -> None:
    case = FINDINGS[name]
    result = check_demo(case.get("asked"), **case["keys"])
    assert said(result) == [tuple(case["found"])]
    assert case.get("says", "") in result.findings[0].message
    rule, severity = case["found"][:2]
    assert exit_code([result]) == (2 if rule == "file.unreadable" else severity == "error")
    assert result.figures is None or not rule.startswith("legality")


BROKEN = {
    "accelerate.yaml": "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: [2\n"
    "num_processes: 8\n",
    "ds.json": '{\n  "train_batch_size": 8\n  "zero_optimization": {}\n}\n',
}


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [("accelerate.yaml", 4, "not YAML"), ("ds.json", 3, '"," or "}" must follow')],
)
def test_a_broken_file_is_named_with_its_line(
    tmp_path: Path, name: str, line: int, message: str
) -> None:
    (tmp_path / name).write_text(BROKEN[name])
    (finding,) = check_file(str(tmp_path / name), Request()).findings
    assert (finding.rule, finding.line) == ("file.unreadable", line)
    assert message in finding.message


def test_a_stage_that_does_not_fit_names_bytes_and_a_way_out(check_demo: Check) -> None:
    result = check_demo({"seq_len": 8192}, micro=8, pp=2)
    assert said(result) == [("memory.fits", "error", "micro", 4)] * 2
    first, second = (one.message for one in result.findings)
    assert first.startswith("each GPU of pipeline stage 0 needs ")
    assert "GiB missing; nearest that fits, " in first
    assert "micro-batch 8 to " in first
    assert second.startswith("each GPU of pipeline stage 1 needs ")
    assert second.endswith("missing")


def test_a_way_out_uses_as_many_gpus_and_is_found_where_they_divide_little(
    check_demo: Check,
) -> None:
    result = check_demo({"seq_len": 8192}, gpus=2, tp=None, sequence_parallel=None)
    _, found, way_out = result.findings[0].message.partition("nearest that fits")
    degrees = re.findall(r"\b(?:tp|pp|cp) \d+ to (\d+)", way_out)
    assert found
    assert math.prod(map(int, degrees)) in (1, 2), way_out
    unstated = dict.fromkeys(("tp", "zero", "micro", "batch", "sequence_parallel"))
    result = check_demo({"seq_len": 8192}, gpus=15, **unstated)
    assert ("memory.fits", "error", "gpus", 2) in said(result)
    assert "nearest that fits" in result.findings[0].message


def test_memory_inside_the_uncertainty_is_a_warning(check_demo: Check) -> None:
    lengths = range(17408, 24576, 512)
    found = [check_demo(length=length, batch=64, zero=1, pp=1, tp=2) for length in lengths]
    tight = [one for one in found if said(one) == [("memory.tight", "warning", "micro", 4)]]
    assert tight
    assert exit_code(tight) == 0
    assert "on published runs" in tight[0].findings[0].message


def test_experts_beyond_the_domain_are_a_note(check_demo: Check) -> None:
    asked = {"model": "mixtral-8x7b", "cluster": "4xdgx-h100"}
    result = check_demo(asked, tp=2, ep=8, length=4096)
    assert ("network.ep_in_domain", "note", "ep", 7) in said(result)


def test_a_warning_fails_where_that_is_asked_for_unless_its_rule_or_family_is_ignored(
    check_demo: Check,
) -> None:
    assert exit_code([check_demo({"fail_on": "warning"}, log_every=0)]) == 1
    for ignore in (("demo.log_every_is_positive",), ("demo",)):
        result = check_demo({"ignore": ignore, "fail_on": "note"}, log_every=0)
        assert said(result) == []
        assert (result.num_ignored, exit_code([result])) == (1, 0)


def test_that_a_file_cannot_be_read_is_never_ignored(tmp_path: Path) -> None:
    result = check_file(str(tmp_path / "none"), Request(ignore=("file.unreadable", "file")))
    assert said(result) == [("file.unreadable", "error", "", 0)]
    assert exit_code([result]) == 2


def test_a_file_of_no_format_says_which_there_are(check_demo: Check, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("hello")
    result = check_file(str(tmp_path / "a"), Request())
    assert re.search("is of no known format.*known are plan files, .*demo", str(result.findings))


def test_a_file_of_several_formats_asks_for_one(
    check_demo: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, "recognised", lambda _: [FORMAT, FORMAT])
    result = check_demo()
    assert "could be of several formats: demo, demo; --framework" in result.findings[0].message
    assert said(check_demo({"framework": "demo"})) == []


def test_a_file_without_model_or_cluster_is_linted_and_asks_for_them(check_demo: Check) -> None:
    result = check_demo({"model": None, "cluster": None})
    assert "--model and --cluster say for what job" in result.findings[-1].message
    assert exit_code([result]) == 0


def test_a_file_without_a_cluster_is_linted_for_the_model_that_it_names(tmp_path: Path) -> None:
    run = "NPROC_PER_NODE=8 megatron sft --model zai-org/GLM-4.5-Air --dataset d"
    script = tmp_path / "run.sh"
    script.write_text(f"{run} --pipeline_model_parallel_size 4\n")
    result = check_file(str(script), Request())
    assert result.model == "glm-4.5-air"
    found = {each.rule: each.message for each in result.findings}
    assert "must divide 46 layers" in found["megatron.pp_divides_layers"]
    assert ": --cluster says for what job" in found["job.unknown"]


@pytest.mark.parametrize(
    "request_of",
    [
        {"model": "llama9"},
        {"cluster": "2xdgx-z9"},
        {"framework": "demi"},
        {"model": "m" * 5000},
        {"model": "llama9", "cluster": "2xdgx-z9"},
    ],
)
def test_a_request_that_cannot_be_used_is_an_input_error(
    check_demo: Check, request_of: dict[str, Any]
) -> None:
    with pytest.raises(InputError, match=r"did you mean|unknown model") as caught:
        check_demo(request_of)
    assert len(caught.value.problems) == len(request_of)


def test_the_way_out_is_one_that_the_file_has_keys_for(tmp_path: Path) -> None:
    path = tmp_path / "accelerate.yaml"
    path.write_text(SHARDED)
    assumed = {**read_assumed(["recompute=none"]), "optimizer": "adam"}
    request = replace(OPEN, assumed=assumed, seq_len=16384)
    (found,) = check_file(str(path), request).findings
    assert (found.rule, found.severity) == ("memory.fits", "error")
    assert found.message.endswith("recompute none to full")
    assumed = read_assumed(["recompute=full"])
    assert check_file(str(path), replace(request, assumed=assumed)).findings == ()


def test_what_hangs_on_an_assumption_is_no_error(tmp_path: Path) -> None:
    """Nothing recomputed does not fit, everything does, and the file leaves it to the script."""
    path = tmp_path / "accelerate.yaml"
    path.write_text(SHARDED)
    result = check_file(str(path), replace(OPEN, seq_len=16384))
    (found,) = result.findings
    assert (found.rule, found.severity) == ("memory.fits", "note")
    assert "--assume recompute=full" in found.message
    assert "nothing recomputed" in result.assumed
    (never,) = check_file(str(path), replace(OPEN, model="llama3.1-70b")).findings
    assert (never.rule, never.severity) == ("memory.fits", "error")


def test_a_way_out_that_the_file_has_no_keys_for_is_called_so(check_demo: Check) -> None:
    unstated = dict.fromkeys(("tp", "zero", "micro", "sequence_parallel"))
    result = check_demo({"seq_len": 8192}, **unstated)
    assert "(this file has no keys for it)" in result.findings[0].message
    # A file that is not edited may state what changes all the same.
    stated = check_demo({"seq_len": 8192}, micro=16)
    assert stated.findings[0].message.endswith("micro-batch 16 to 2")
