"""Public logs in excerpts: what is read of each, and that two runs in one file are refused."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from planner.compare.compare import compare
from planner.compare.log import read_log
from planner.errors import InputError
from planner.query.from_file import Request

FOLDER = Path(__file__).with_name("logs")
SOURCES: dict[str, dict[str, Any]] = yaml.safe_load((FOLDER / "sources.yaml").read_text("utf-8"))
MACHINE = "64xjean-zay-v100"
"""Where the runs of the logs with whole settings of Megatron-LM took place."""
FAR = 0.30  # no price of theirs is farther off


def path_of(name: str) -> str:
    return str(FOLDER / f"{name}.log")


def test_every_log_has_a_source_and_every_source_a_log() -> None:
    assert sorted(SOURCES) == sorted(path.stem for path in FOLDER.glob("*.log"))
    assert all(each["url"].startswith("https://github.com/") for each in SOURCES.values())


@pytest.mark.parametrize("name", sorted(name for name in SOURCES if "printed" in SOURCES[name]))
def test_a_public_log_is_read_as_it_was_by_hand(name: str) -> None:
    said, log = SOURCES[name], read_log(path_of(name))
    assert (log.framework, log.unit, len(log.steps)) == (
        said["framework"],
        said["unit"],
        said["steps"],
    )
    assert compare(log, Request()).rate == pytest.approx(said["printed"], rel=1e-5)
    assert (log.dump.framework if log.dump else None) == said.get("settings")


@pytest.mark.parametrize("name", sorted(name for name in SOURCES if "refused" in SOURCES[name]))
def test_a_public_log_of_two_runs_is_refused_at_the_second(name: str) -> None:
    with pytest.raises(InputError) as raised:
        read_log(path_of(name))
    assert SOURCES[name]["refused"] in str(raised.value)


@pytest.mark.parametrize("name", [f"megatron-v100-n{n}" for n in (4, 8, 16, 32, 64)])
def test_the_settings_in_a_log_alone_give_its_price(name: str) -> None:
    found = compare(read_log(path_of(name)), Request(cluster=MACHINE))
    assert found.unpriced == ()
    assert found.layout is not None
    assert found.layout.strategy.num_gpus == 4 * int(name.rpartition("n")[2])
    assert found.time_error is not None
    assert abs(found.time_error) < FAR
