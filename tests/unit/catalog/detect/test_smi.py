import pytest

from planner.catalog.detect.observation import Slot
from planner.catalog.detect.smi import COMMAND, parse_smi
from planner.errors import InputError

HEADER = "name, memory.total [MiB], memory.reserved [MiB], pcie.link.gen.max, pcie.link.width.max"


def test_rows_are_counted_and_reserved_memory_is_taken_off() -> None:
    row = "NVIDIA H100 80GB HBM3, 81559 MiB, 551 MiB, 5, 16"
    seen = parse_smi("\n".join([HEADER, row, row]), "smi")
    assert (seen.gpu, seen.num_gpus) == ("NVIDIA H100 80GB HBM3", 2)
    assert seen.memory_mib == 81559 - 551
    assert seen.slot == Slot(generation=5, lanes=16)


def test_columns_may_come_in_any_order_and_without_units() -> None:
    seen = parse_smi("index, memory.total [MiB], name\n0, 46068, NVIDIA L40S\n", "smi")
    assert (seen.gpu, seen.num_gpus, seen.memory_mib) == ("NVIDIA L40S", 1, 46068)


@pytest.mark.parametrize("text", ["[N/A]", "N/A", "[Not Supported]", "[Unknown Error]"])
def test_memory_that_is_not_available_is_not_told(text: str) -> None:
    seen = parse_smi(f"name, memory.total [MiB]\nNVIDIA L40S, {text}\n", "smi")
    assert seen.memory_mib is None
    assert seen.notes == ("memory.total is not told",)


def test_the_smallest_memory_and_the_slowest_slot_count() -> None:
    rows = ["NVIDIA L40S, 46068 MiB, 0 MiB, 4, 16", "NVIDIA L40S, 45000 MiB, 0 MiB, 4, 8"]
    seen = parse_smi("\n".join([HEADER, *rows]), "smi")
    assert seen.memory_mib == 45000
    assert seen.slot == Slot(generation=4, lanes=8)


@pytest.mark.parametrize("slot", ["0, 16", "4, 0", "[N/A], [N/A]"])
def test_a_slot_of_width_or_generation_zero_is_not_told(slot: str) -> None:
    assert parse_smi(f"{HEADER}\nNVIDIA L40S, 1 MiB, 0 MiB, {slot}", "smi").slot is None


def test_all_problems_of_a_table_are_told_at_once() -> None:
    with pytest.raises(InputError) as error:
        parse_smi("name, memory.total [MiB]\nA, x\nB MIG 1g.5gb, 5 MiB\nC\n", "smi")
    keys = [problem.key for problem in error.value.problems]
    assert keys == ["line 2: memory.total", "line 3: name", "line 4"]


def test_of_very_many_problems_the_first_are_told_and_the_rest_counted() -> None:
    with pytest.raises(InputError) as error:
        parse_smi("name, memory.total [MiB]\n" + "A, x\n" * 100, "smi")
    assert len(error.value.problems) == 21
    assert error.value.problems[-1].message.startswith("80 more problems")


def test_the_command_asks_for_what_is_read() -> None:
    assert COMMAND.startswith("nvidia-smi --query-gpu=name,memory.total,")
    assert COMMAND.endswith(" --format=csv")


@pytest.mark.parametrize("why", ["[N/A]", "[Insufficient Permissions]", "[GPU is lost]", "n/a", ""])
def test_a_figure_that_is_not_given_is_not_told_whatever_the_reason(why: str) -> None:
    seen = parse_smi(
        f"name, memory.total [MiB], pcie.link.gen.max\nNVIDIA A10, {why}, {why}\n", "x"
    )
    assert (seen.memory_mib, seen.slot) == (None, None)
