"""--documents against what a file says of packing and padding."""

import json
from pathlib import Path
from typing import Any

import pytest
from in_process import planner

TRL = """\
model_name_or_path: Qwen/Qwen2.5-0.5B
dataset_name: stanfordnlp/imdb
learning_rate: 0.0001
max_length: 4096
bf16: true
packing: {packing}
"""


@pytest.fixture
def checked(tmp_path: Path) -> Any:
    def run(packing: str, *options: str) -> dict[str, Any]:
        path = tmp_path / "sft.yaml"
        path.write_text(TRL.format(packing=packing), encoding="utf-8")
        job = ("--model", "qwen2.5-0.5b", "--cluster", "1xdgx-h100", "--format", "json")
        found = planner("check", str(path), *job, *options)
        assert found.out, found.err
        return dict(json.loads(found.out)["files"][0])

    return run


@pytest.mark.parametrize(("packing", "kind"), [("true", "packed"), ("false", "padded")])
def test_a_mean_alone_is_of_documents_as_the_file_batches_them(
    packing: str, kind: str, checked: Any
) -> None:
    alone = checked(packing, "--documents", "300")
    assert "job.documents" not in {each["rule"] for each in alone["findings"]}
    named = checked(packing, "--documents", f"{kind}:300")
    assert alone["figures"]["iter_time_s"] == named["figures"]["iter_time_s"]
    whole = checked(packing)
    assert named["figures"]["iter_time_s"] < whole["figures"]["iter_time_s"]
