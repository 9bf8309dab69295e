"""The format ``accelerate`` against Accelerate itself."""

import warnings
from collections.abc import Callable
from contextlib import nullcontext, suppress
from itertools import islice
from pathlib import Path

import pytest
from accelerate_consumer import Started, start
from accelerate_plans import Case, cases
from rule_examples import judged

from planner.errors import ExpressError
from planner.formats.accelerate.format import FORMAT

EXAMPLES = Path(__file__).parents[1] / "examples" / "formats" / "accelerate"
NUM_PLANS = 100
SIZES = ("dp_replicate", "dp_shard", "tp", "cp")


@pytest.fixture(autouse=True)
def quiet() -> None:
    warnings.simplefilter("ignore")


def plans() -> list[Case]:
    found = []
    for case in islice(cases(11), 2000):
        with suppress(ExpressError):
            FORMAT.emit(*case)
            found.append(case)
        if len(found) == NUM_PLANS:
            break
    return found


def started(path: Path, case: Case) -> Started:
    emitted = FORMAT.emit(*case)
    (file,) = emitted.files
    path.joinpath(file.name).write_text(file.text, encoding="utf-8")
    extra = {
        name: value.replace("${NVME_PATH}", "/nvme") for name, value in emitted.environment.items()
    }
    return start(path / file.name, extra)


def assert_as_planned(found: Started, case: Case) -> None:
    _, strategy = case
    assert found.num_processes == strategy.num_gpus
    shard = strategy.dp // strategy.dp_replicate
    if found.mesh:
        sizes = (strategy.dp_replicate, shard, strategy.tp, strategy.cp)
        assert tuple(found.mesh[name] for name in SIZES) == sizes
    if found.fsdp:
        assert found.fsdp.fsdp_version == 2
        assert found.fsdp.reshard_after_forward is (strategy.zero_stage == 3)
        assert ("CPU" in type(found.fsdp.cpu_offload).__name__) is (strategy.offload != "none")
        assert found.fsdp.activation_checkpointing is (strategy.recompute == "full")
    if found.deepspeed:
        zero = found.deepspeed.deepspeed_config["zero_optimization"]
        assert zero["stage"] == strategy.zero_stage
        assert (zero["offload_optimizer"]["device"] != "none") is (strategy.offload != "none")
        assert (zero["offload_param"]["device"] != "none") is ("param" in strategy.offload)
        steps = found.deepspeed.deepspeed_config["gradient_accumulation_steps"]
        assert steps == strategy.num_micro_batches


def test_accelerate_starts_every_plan_with_the_degrees_planned(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    kinds: dict[str, int] = {}
    for case in plans():
        found = started(tmp_path, case)
        assert_as_planned(found, case)
        kinds[found.kind] = kinds.get(found.kind, 0) + 1
    record_property("plans accepted", kinds)
    assert sum(kinds.values()) == NUM_PLANS
    assert {"FSDP", "MULTI_GPU", "DEEPSPEED"} <= {*kinds}


@pytest.mark.parametrize(("rule", "kind", "is_refused"), judged(FORMAT))
def test_accelerate_judges_the_examples_as_the_rules_say(
    rule: str, kind: str, is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(EXAMPLES / rule)
    errors = (ValueError, KeyError, TypeError, AttributeError)
    with pytest.raises(errors) if is_refused else nullcontext():
        start(Path(f"{kind}.yaml"))
