"""`planner plan --maximize`: verdict first, what binds, and where nothing fits."""

from in_process import json_of

LAYOUT = ("--tp", "2", "--pp", "1", "--recompute", "none", "--forbid", "offload")
SMALL = ("plan", "gpt3-xl", "2xa100-40", *LAYOUT, "--maximize", "micro-batch")


def test_the_document_holds_the_values_and_their_plans() -> None:
    found = json_of(*SMALL)
    batch, length = found["largest"]
    assert batch["value"] == batch["micro_batch"] == batch["plan"]["strategy"]["micro_batch"]
    assert length["value"] == length["seq_len"]
