"""Logs: whose lines they are, steps once each and in seconds, sizes, memory, what is refused."""

from pathlib import Path
from time import process_time

import pytest

from planner.compare.log import Log, Step, Unit, log_of, measured, read_log, seconds
from planner.errors import InputError

MIB, GIB = 2**20, 2**30
SIZES = {"global_batch": 16, "seq_len": 1000, "num_gpus": 4}


def megatron(*rows: tuple[int, float]) -> str:
    return "".join(
        f" iteration {number:8d}/     100 | elapsed time per iteration (ms): {ms:.1f} | "
        "throughput per GPU (TFLOP/s/GPU): 240.0 | global batch size:   128 |\n"
        for number, ms in rows
    )


def refused(text: str) -> str:
    with pytest.raises(InputError) as raised:
        log_of("run.log", text)
    return str(raised.value)


def test_a_line_of_megatron_says_time_and_batch() -> None:
    log = log_of("run.log", "using world size: 16, data-parallel size: 4\n" + megatron((1, 900)))
    assert (log.framework, log.unit) == ("megatron", "ms")
    assert (log.sizes["global_batch"], log.sizes["num_gpus"]) == (128, 16)
    assert [(step.number, step.value, step.line) for step in log.steps] == [(1, 900.0, 2)]


def test_seconds_are_told_from_milliseconds_and_other_units_are_refused() -> None:
    text = megatron((1, 12.5))
    assert log_of("run.log", text.replace("(ms)", "(s)")).unit == "s"
    said = refused(text.replace("(ms)", "(min)"))
    assert said == "run.log::line 1: elapsed time is in min; allowed are ms and s"


def test_memory_is_the_largest_peak_of_the_ranks() -> None:
    text = (
        "[Rank 0] (after 1 iterations) memory (MB) | allocated: 1.0 | max allocated: 20.0 | "
        "reserved: 30.0 | max reserved: 31.0[Rank 1] (after 1 iterations) memory (MB) | "
        "allocated: 1.0 | max allocated: 25.0 | reserved: 30.0 | max reserved: 30.0\n"
    )
    memory = log_of("run.log", text + megatron((1, 900))).memory
    assert (memory.allocated_bytes, memory.reserved_bytes) == (25 * MIB, 31 * MIB)


def test_colours_are_no_part_of_a_line_and_ranks_print_a_step_once() -> None:
    line = (
        "[rank{}]:[titan] - root - INFO - \x1b[31mstep: {:2}  \x1b[32mloss:  8.0  "
        "\x1b[33mmemory: 10.50GiB(13.0%)  \x1b[34mtps: 1,{}00  mfu: 40.00%\x1b[39m\n"
    )
    rows = [(0, 1, 1), (1, 1, 1), (0, 2, 2), (1, 1, 1), (0, 3, 3), (1, 2, 2)]
    log = log_of("run.log", "".join(line.format(*row) for row in rows))
    assert [(step.number, step.value) for step in log.steps] == [(1, 1100), (2, 1200), (3, 1300)]
    assert log.memory.reserved_bytes == 10.5 * GIB


def test_a_second_run_is_refused_at_its_line() -> None:
    text = megatron((1, 900), (2, 800), (1, 900))
    assert refused(text) == (
        "run.log::line 3: a second run starts here, at step 1 after 2; "
        "give each run in a file of its own"
    )
    arguments = "---- end of arguments ----\n".replace("----", "-" * 20)
    assert "line 3: a second run starts" in refused(arguments + megatron((1, 900)) + arguments)


def test_a_bar_counts_as_it_last_stood_and_other_loops_do_not() -> None:
    text = (
        "Map: 100%|###| 900/900 [00:00<00:00, 9000.0it/s]\n"
        "  1%|  | 1/90 [00:09<1:00, 9.00s/it]\r  1%|  | 1/90 [00:10<1:00, 8.00s/it]\n"
        "  2%|  | 2/90 [00:13<1:00, 5.00s/it]\n"
        " 50%|  | 2/4 [00:01<00:01, 2.00s/it]\n"
    )
    log = log_of("run.log", text)
    assert (log.framework, log.unit) == ("trainer", "s")
    assert [step.value for step in log.steps] == [8.0, 5.0]


def test_gpus_of_a_trainer_follow_from_its_batches() -> None:
    text = (
        "***** Running training *****\n  Instantaneous batch size per device = 8\n"
        "  Total train batch size (w. parallel, distributed & accumulation) = 224\n"
        "  Gradient Accumulation steps = 4\n"
        "{'train_runtime': 2.0, 'train_samples_per_second': 3.5}\n"
    )
    log = log_of("run.log", text)
    assert (log.sizes["num_gpus"], log.sizes["global_batch"], log.unit) == (7, 224, "samples/s")
    assert log.notes == ("one figure for the whole run: no step times",)


def test_what_ends_before_a_step_is_truncated_and_what_is_no_log_is_of_no_known_form() -> None:
    said = refused("-------- arguments --------\n  bf16 ..... True\n")
    assert said.startswith("run.log::line 2: a log of megatron that ends before a step")
    assert "is of no known form" in refused("hello\n")
    assert "is empty" in refused("")
    with pytest.raises(InputError, match="no such file"):
        read_log("nowhere.log")


def test_a_last_line_that_is_cut_off_is_left_out_and_said() -> None:
    log = log_of("run.log", megatron((1, 900), (2, 800)) + " iteration        3/     100 | elap")
    assert (len(log.steps), log.notes) == (2, ("line 3 is cut off and left out",))


@pytest.mark.parametrize("unit", [" " * 3, "step: 1 ", " elapsed", "1%| ", "a ..... ", "{", '"'])
def test_a_line_of_any_length_is_read_in_no_time(unit: str) -> None:
    line = "iteration 1/ 2 |" + 100_000 * unit
    started = process_time()
    refused(f"{'-' * 9} arguments {'-' * 9}\n{line}\n")
    assert process_time() - started < 5.0


def test_the_first_release_of_deepspeed_names_no_file() -> None:
    line = "[INFO 2020-06-08 05:26:19] 0/2650, SamplesPerSec=13.197\n"
    log = log_of("run.log", line + line.replace("2650", "2700"))
    assert (log.framework, log.unit) == ("deepspeed", "samples/s")
    assert [(step.number, step.value) for step in log.steps] == [(2650, 13.197), (2700, 13.197)]


def test_characters_that_ranks_cut_apart_are_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "run.log"
    file.write_bytes("▌".encode()[:2] + b"\n" + megatron((1, 900), (2, 800)).encode())
    assert len(read_log(str(file)).steps) == 2


def stepped(*values: float, first: int = 1, unit: Unit = "s") -> Log:
    steps = tuple(
        Step(number=first + at, value=value, line=at + 1) for at, value in enumerate(values)
    )
    return Log(path="run.log", framework="megatron", unit=unit, steps=steps)


def test_every_unit_is_the_same_time_and_a_rate_without_its_sizes_none() -> None:
    values = {"ms": 2000.0, "s": 2.0, "it/s": 0.5, "samples/s": 8.0, "tokens/s/GPU": 2000.0}
    assert [seconds(value, unit, SIZES) for unit, value in values.items()] == [2.0] * 5
    assert seconds(8.0, "samples/s", {}) is None
    assert seconds(8.0, "tokens/s/GPU", {"global_batch": 16}) is None
    assert measured(stepped(8.0, unit="samples/s"), {}) is None


@pytest.mark.parametrize(
    ("log", "left_out", "iter_time_s", "spread"),
    [
        # The first step and slow ones behind it are left out, but no more than half of a run.
        (stepped(9.0, 3.0, 1.0, 1.0, 1.0, 1.0), (9.0, 3.0), 1.0, 0.0),
        (stepped(9.0, 9.0, 9.0, 1.0, 1.0, 1.0, 1.0), (9.0, 9.0, 9.0), 1.0, 0.0),
        # A log from the middle of a run keeps its first line, and one step is taken as it is.
        (stepped(3.0, 1.0, 1.0, first=71), (), 1.0, None),
        (stepped(3.0), (), 3.0, 0.0),
    ],
)
def test_first_steps_are_left_out(
    log: Log, left_out: tuple[float, ...], iter_time_s: float, spread: float | None
) -> None:
    found = measured(log, {})
    assert (found.left_out_s, found.iter_time_s) == (left_out, iter_time_s)
    assert spread is None or found.spread == pytest.approx(spread)


def test_the_mean_is_of_the_steps_that_are_kept() -> None:
    found = measured(stepped(9.0, 3.0, 1.0, 1.0, 1.0, 2.0), {})
    assert (found.steps_s, found.mean_s) == ((1.0, 1.0, 1.0, 2.0), 1.25)
