"""What a plan file of an earlier version says that is not modelled."""

from pathlib import Path

import pytest

from planner.answers.plan_file import read_plan
from planner.errors import InputError


@pytest.mark.parametrize("key", ["gradient_exchange", "zenflow"])
def test_a_plan_that_trains_otherwise_is_refused_by_its_key(key: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(f"schema_version: 1\ninputs: {{model: llama3-8b, {key}: some}}\n")
    with pytest.raises(InputError) as caught:
        read_plan(path)
    (problem,) = caught.value.problems
    assert (problem.key, problem.message.split(":")[0]) == (f"inputs.{key}", "not covered")
