import pytest

from planner.errors import ExpressError, InputError, NothingFitsError, PlannerError, Problem


def test_a_problem_reads_file_key_message() -> None:
    problem = Problem(where="models/x.yaml", key="moe.top_k", message="must be at least 1")
    assert str(problem) == "models/x.yaml::moe.top_k: must be at least 1"


def test_an_input_error_carries_and_shows_every_problem() -> None:
    problems = [Problem(where="f", key=str(i), message="wrong") for i in range(3)]
    error = InputError(iter(problems))
    assert error.problems == tuple(problems)
    assert str(error).splitlines() == ["f::0: wrong", "f::1: wrong", "f::2: wrong"]
    single = InputError.single("--seq-len", "4k5", "not a count")
    assert [str(problem) for problem in single.problems] == ["--seq-len::4k5: not a count"]


@pytest.mark.parametrize(
    ("error", "code"), [(InputError, 2), (NothingFitsError, 3), (ExpressError, 4)]
)
def test_every_error_ends_with_its_own_code(error: type[PlannerError], code: int) -> None:
    assert error.exit_code == code
    assert issubclass(error, PlannerError)
