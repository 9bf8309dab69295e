"""A repair changes NeMo's own keys, and refuses what has none."""

from collections.abc import Callable

import pytest

from planner.cost.context import Context
from planner.errors import ExpressError
from planner.formats.format import SourceText
from planner.formats.registry import load_format
from planner.spec.strategy import Strategy

NEMO = load_format("nemo")
TEXT = """\
trainer:
  devices: 8  # of one node
  num_nodes: 1
  precision: bf16
model:
  micro_batch_size: 1
  global_batch_size: 16
  tensor_model_parallel_size: 8
  sequence_parallel: false
  megatron_amp_O2: true
  optim:
    name: fused_adam
"""


@pytest.fixture
def written(
    context_of: Callable[..., Context], strategy_of: Callable[..., Strategy]
) -> Callable[..., str]:
    """Write a plan into the text."""

    def write(**decisions: object) -> str:
        plan = {"dp": 4, "tp": 2, "num_micro_batches": 4, **decisions}
        source = SourceText(path="a.yaml", text=TEXT)
        return NEMO.write_into(source, context_of(), strategy_of(**plan))

    return write


def test_only_what_changes_is_written(written: Callable[..., str]) -> None:
    after = TEXT.replace("size: 8", "size: 2")
    assert written(zero_stage=0) == after


def test_sharding_is_the_optimizer_s_name(written: Callable[..., str]) -> None:
    assert "name: mcore_distributed_optim" in written(zero_stage=1)


def test_sequence_parallelism_is_a_flag(written: Callable[..., str]) -> None:
    assert "sequence_parallel: true" in written(sequence_parallel=True)


def test_what_has_no_key_is_refused_by_name(written: Callable[..., str]) -> None:
    with pytest.raises(ExpressError, match="NeMo has no key for"):
        written(zero_stage=3)


def test_a_new_file_is_refused(
    context_of: Callable[..., Context], strategy_of: Callable[..., Strategy]
) -> None:
    with pytest.raises(ExpressError, match="bridge"):
        NEMO.emit(context_of(), strategy_of(dp=8, num_micro_batches=2))
