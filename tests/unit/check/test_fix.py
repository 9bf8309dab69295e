"""Where repairs start: contradictions leave a whole strategy, what follows is filled in."""

from collections.abc import Callable

import pytest
from fake_format import FORMAT, demo_text

from planner.catalog.clusters import load_cluster
from planner.catalog.models import load_model
from planner.check.start import Start, start_of
from planner.errors import InputError
from planner.formats.format import SourceText
from planner.query.from_file import Job, Request

Begin = Callable[..., Start]


@pytest.fixture
def start() -> Begin:

    def run(job: dict[str, int] | None = None, **changes: object) -> Start:
        source = SourceText(path="run.demo", text=demo_text(**changes))
        model, cluster = load_model("llama3-8b"), load_cluster("2xdgx-h100")
        whole = Job(model=model, cluster=cluster, request=Request(**(job or {})))
        return start_of(FORMAT, source, FORMAT.read(source), whole)

    return run


def test_a_sound_file_starts_as_it_is(start: Begin) -> None:
    made = start()
    assert made.layout == made.completed.layout
    assert made.num_gpus == 16


def test_degrees_that_do_not_divide_the_gpus_stay(start: Begin) -> None:
    made = start(tp=3)
    assert (made.layout.strategy.tp, made.num_gpus) == (3, 16)
    assert made.completed.layout is None


def test_more_stages_than_layers_stay(start: Begin) -> None:
    made = start(pp=64)
    assert (made.layout.strategy.pp, made.num_gpus) == (64, 16)
    assert len(made.layout.strategy.layers_per_stage) == 1


def test_a_batch_that_does_not_add_up_is_the_files(start: Begin) -> None:
    made = start(steps=5)
    strategy, job = made.layout.strategy, made.layout.context.job
    assert (strategy.micro_batch, strategy.num_micro_batches, job.global_batch) == (1, 5, 128)


def test_what_the_file_does_not_state_of_the_batch_follows(start: Begin) -> None:
    assert start(micro=3, batch=100).layout.strategy.num_micro_batches == 4
    assert start(micro=None, steps=3).layout.strategy.micro_batch == 5


def test_the_jobs_gpus_batch_and_length_come_first(start: Begin) -> None:
    made = start({"num_gpus": 8, "global_batch": 64, "seq_len": 4096}, gpus=16, length=8192)
    job = made.layout.context.job
    assert (made.num_gpus, job.global_batch, job.seq_len) == (8, 64, 4096)


def test_repairs_use_no_more_gpus_than_there_are(start: Begin) -> None:
    made = start(gpus=64)
    assert (made.num_gpus, made.layout.strategy.dp) == (16, 32)


def test_places_are_those_of_the_file(start: Begin) -> None:
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
    start: Begin, changes: dict[str, object], said: str
) -> None:
    with pytest.raises(InputError) as error:
        start(**changes)
    assert str(error.value).startswith(said)
