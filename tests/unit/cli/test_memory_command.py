"""``planner memory``: one configuration, as text and as JSON, and what it refuses."""

import json
import re
from typing import Any

import pytest

LAYOUT = ("memory", "llama3.1-70b", "4xdgx-h100", "--tp", "8", "--pp", "2")
PROBLEM = re.compile(r"[^:]+::[^:]+: .+")


def answer_of(run: Any) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(run.out)
    return answer


def assert_refused(run: Any, *texts: str) -> None:
    """Exit 2, nothing on standard output, problems as ``where::key: message``."""
    assert run.code == 2
    assert run.out == ""
    assert "Traceback" not in run.err
    lines = [line for line in run.err.splitlines() if not line.startswith("try: ")]
    assert all(PROBLEM.fullmatch(line) for line in lines)
    for text in texts:
        assert text in run.err


def test_text_shows_configuration_ledger_stages_and_savings(
    planner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    run = planner(*LAYOUT, "-v")
    assert (run.code, run.err) == (0, "")
    assert "llama3.1-70b on 4xdgx-h100, sequences of 8192 tokens, bf16, megatron" in run.out
    assert "32 GPUs: dp=2 tp=8 pp=2, ZeRO-1" in run.out
    assert "note: sequence length 8192" in run.out
    for heading in ("ledger of stage 0", "by stage", "What would save how much"):
        assert heading in run.out
    # 80 layers, 28672 / 8 columns of feed-forward, 40 layers x 2 micro-batches in flight.
    assert "80 x [8,192 x 3,584] of 2 B" in run.out
    assert "not possible here" in run.out
    assert "ZeRO stage 2, ZeRO stage 3 (zero_stage_offered: megatron offers" in run.out


@pytest.mark.parametrize("width", [80, 120])
def test_text_stays_within_the_terminal(
    planner: Any, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    for arguments in (LAYOUT, (*LAYOUT, "-v"), (*LAYOUT, "--all")):
        assert max(len(line) for line in planner(*arguments).out.splitlines()) <= width


def test_all_shows_every_item(planner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    first = answer_of(planner(*LAYOUT, "--format", "json"))["stages"][0]["ledger"]
    short, long = planner(*LAYOUT, "-v").out, planner(*LAYOUT, "--all").out
    assert f"and {len(first) - 12} smaller items" in short
    assert "smaller items" not in long
    assert all(item["name"] in long for item in first)


def test_json_ledgers_add_up_to_the_peaks(planner: Any) -> None:
    answer = answer_of(planner(*LAYOUT, "--format", "json"))
    assert len(answer["stages"]) == 2
    for stage in answer["stages"]:
        total = sum(item["num_bytes"] for item in stage["ledger"])
        assert total == pytest.approx(stage["peak_bytes"], rel=1e-12)
        assert stage["allocated_bytes"] < stage["peak_bytes"]
    assert answer["peak_bytes"] == max(stage["peak_bytes"] for stage in answer["stages"])
    assert answer["headroom_bytes"] == answer["hbm_bytes"] - answer["peak_bytes"]
    for saving in answer["savings"]:
        if saving["refused"] is None:
            assert saving["saved_bytes"] == answer["peak_bytes"] - saving["peak_bytes"]


@pytest.mark.parametrize(
    ("options", "verdict", "code"),
    [
        (("--margin", "1"), "fits", 0),
        (("--margin", "10"), "tight", 0),
        (("--micro-batch", "2"), "does not fit", 3),
        (("--micro-batch", "2", "--recompute", "full"), "fits", 0),
    ],
)
def test_verdict_and_exit_code(
    planner: Any, options: tuple[str, ...], verdict: str, code: int
) -> None:
    run = planner(*LAYOUT, *options, "--format", "json")
    answer = answer_of(run)
    assert (answer["verdict"], run.code) == (verdict, code)
    assert (answer["peak_bytes"] > answer["hbm_bytes"]) == (code == 3)
    assert f" GiB: {verdict}, " in planner(*LAYOUT, *options).out


def test_the_margin_is_the_uncertainty_and_moves_no_byte(planner: Any) -> None:
    plain = answer_of(planner(*LAYOUT, "--format", "json"))
    given = answer_of(planner(*LAYOUT, "--format", "json", "--margin", "7.5"))
    assert given["uncertainty_bytes"] == pytest.approx(0.075 * given["hbm_bytes"])
    assert plain["uncertainty_bytes"] != given["uncertainty_bytes"]
    assert given["peak_bytes"] == plain["peak_bytes"]


def test_optimizers_without_states_take_less_and_set_the_zero_stage(planner: Any) -> None:
    found = {
        name: answer_of(planner(*LAYOUT, "--format", "json", "--optimizer", name))
        for name in ("adam", "muon", "sgd")
    }
    # Megatron has no distributed optimizer for SGD; Muon's runs under stage 1.
    stages = {name: answer["strategy"]["zero_stage"] for name, answer in found.items()}
    assert stages == {"adam": 1, "muon": 1, "sgd": 0}
    assert found["muon"]["peak_bytes"] < found["adam"]["peak_bytes"]
    states = [i for i in found["sgd"]["stages"][0]["ledger"] if i["name"].startswith("optimizer")]
    assert [(i["name"], i["element_bytes"]) for i in states] == [("optimizer.master_weights", 4.0)]


def test_recompute_modules_change_what_selective_saves(planner: Any) -> None:
    arguments = (*LAYOUT, "--recompute", "selective", "--format", "json")
    default = answer_of(planner(*arguments))
    whole = answer_of(planner(*arguments, "--recompute-modules", "core_attn,mlp"))
    assert whole["peak_bytes"] < default["peak_bytes"]
    names = {item["name"] for item in whole["stages"][0]["ledger"]}
    assert not [name for name in names if "mlp_activation" in name]


@pytest.mark.parametrize(
    ("options", "texts"),
    [
        (("--optimizer", "sgd", "--zero-stage", "1"), ("optimizer_runs_under_zero", "sgd under")),
        (("--optimizer", "nope"), ("--optimizer: unknown optimizer 'nope'",)),
        (("--framework", "torchtitan", "--optimizer", "sgd"), ("does not offer sgd",)),
        (("--recompute-modules", "mlp,attn"), ("unknown modules 'attn' of megatron",)),
        (("--layers-per-stage", "forty,forty"), ("--layers-per-stage: must be one whole number",)),
        (("--layers-per-stage", "40,41"), ("must add up to 80 layers; given 81",)),
        (
            ("--framework", "deepspeed", "--zero-stage", "3"),
            ("zero_stage_offered", "ZeRO 3 with pp 2", "deepspeed offers 0, 1 there"),
        ),
        (("--margin", "100"), ("below 100 percent",)),
        (
            ("--offload-activations", "some", "--offload-percent", "0"),
            (
                "--offload-activations: must be all, or a whole number of layers per stage; given",
                "--offload-percent: must be from 1 to 100; given 0",
            ),
        ),
        (("--offload-activations", "4"), ("megatron offers it: without pipelining",)),
        (("--tp", "0", "--offload", "x"), ("--tp: must be from 1", "unknown offload 'x'")),
        (("--framework", "megatronn"), ("unknown framework 'megatronn'",)),
        (("--framework", "fsdp"), ("unknown framework 'fsdp'",)),
    ],
)
def test_unusable_options_are_refused_by_name(
    planner: Any, options: tuple[str, ...], texts: tuple[str, ...]
) -> None:
    assert_refused(planner(*LAYOUT, *options), *texts)


def test_an_unknown_model_and_cluster_are_both_reported_with_near_names(planner: Any) -> None:
    run = planner("memory", "lama3.1-70b", "4xdgx-h10")
    assert_refused(run, "models::lama3.1-70b: unknown model", "llama3.1-70b", "dgx-h100")
    assert run.err.splitlines()[2:] == ["try: planner explain llama3.1-70b 4xdgx-h100 memory"]


WHOLE = ("memory", "llama3-8b", "1xdgx-h100", "--tp", "8", "--format", "json")


def test_activations_offloaded_to_the_host_are_those_the_device_no_longer_keeps(
    planner: Any,
) -> None:
    kept, moved, some = (
        answer_of(planner(*WHOLE, *options))
        for options in ((), ("--offload-activations", "all"), ("--offload-activations", "8"))
    )
    assert (kept["host_bytes"], kept["host_limit_bytes"]) == (0.0, None)
    items = [
        item for item in kept["stages"][0]["ledger"] if item["name"].startswith("activations.")
    ]
    assert moved["host_bytes"] == pytest.approx(sum(item["num_bytes"] for item in items))
    assert some["host_bytes"] == pytest.approx(moved["host_bytes"] * 8 / 32)
    assert moved["strategy"]["offloaded_layers_per_stage"] == [32]
    assert moved["peak_bytes"] < some["peak_bytes"] < kept["peak_bytes"]


def test_a_part_of_the_states_can_be_offloaded(
    planner: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    offload = ("--offload", "optimizer:host")
    whole = answer_of(planner(*WHOLE, *offload))
    half = answer_of(planner(*WHOLE, *offload, "--offload-percent", "50"))
    assert half["host_bytes"] == pytest.approx(whole["host_bytes"] / 2)
    text = planner(*WHOLE[:-2], *offload, "--offload-percent", "50", "--offload-activations", "3")
    assert "offload optimizer:host 50 %, activations offloaded 3/32" in text.out
