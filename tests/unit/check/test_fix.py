"""Where repairs start: contradictions leave a whole strategy, what follows is filled in."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from fake_format import FORMAT, demo_text
from places import assert_places

from planner.catalog.clusters import load_cluster
from planner.catalog.models import load_model
from planner.check.start import Start, start_of
from planner.errors import InputError
from planner.formats.format import SourceText
from planner.query.from_file import Job, Request

CASES = yaml.safe_load(Path(__file__).with_name("repair_starts.yaml").read_text("utf-8"))


@pytest.fixture
def start() -> Callable[..., Start]:

    def run(job: dict[str, int] | None = None, **changes: object) -> Start:
        source = SourceText(path="run.demo", text=demo_text(**changes))
        model, cluster = load_model("llama3-8b"), load_cluster("2xdgx-h100")
        whole = Job(model=model, cluster=cluster, request=Request(**(job or {})))
        return start_of(FORMAT, source, FORMAT.read(source), whole)

    return run


def test_a_sound_file_starts_as_it_is(start: Callable[..., Start]) -> None:
    made = start()
    assert made.layout == made.completed.layout
    assert made.num_gpus == 16


@pytest.mark.parametrize(
    ("job", "keys", "places"),
    [pytest.param(*row, id=claim) for claim, rows in CASES.items() for row in rows],
)
def test_a_repair_starts_from_what_the_file_and_the_job_say(
    start: Callable[..., Start], job: dict[str, int], keys: dict[str, Any], places: dict[str, Any]
) -> None:
    made = start(job, **keys)
    assert_places(made, places)


def test_places_are_those_of_the_file(start: Callable[..., Start]) -> None:
    place = start(tp=3, dp=7).layout.places.of["dp"]
    assert (place.key, place.line) == ("dp", 7)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tp": 0}, "run.demo:2::tp: tp must be a whole number"),
        ({"micro": "many"}, "run.demo:4::micro: micro_batch must be a whole number"),
        ({"hidden": 5120}, "run.demo:7::hidden: hidden size of llama3-8b is 4096; given 5120"),
        ({"precision": "fp4"}, "run.demo:7::precision: "),
        ({"tp": 3, "batch": None}, "run.demo::global_batch: the file does not say it"),
    ],
)
def test_what_no_layout_mends_is_refused(
    start: Callable[..., Start], changes: dict[str, object], said: str
) -> None:
    with pytest.raises(InputError) as error:
        start(**changes)
    assert str(error.value).startswith(said)
