"""A plan written into a user's file changes what differs, in the user's own spelling."""

from collections.abc import Callable

from planner.cost.context import Context
from planner.formats.format import SourceText
from planner.formats.registry import load_format
from planner.spec.strategy import Strategy

MEGATRON = load_format("megatron")


def test_values_behind_a_sign_and_options_that_say_a_default_keep_their_spelling(
    context_of: Callable[..., Context], strategy_of: Callable[..., Strategy]
) -> None:
    context = context_of()
    plan = strategy_of(dp=4, tp=2, num_micro_batches=4, layers_per_stage=(4,))
    before = MEGATRON.emit(context, plan).files[0].text
    own = before.replace("model-parallel-size 2", "model-parallel-size=8")
    own += "--context-parallel-size 1\n--seed=7\n"
    after = MEGATRON.write_into(SourceText(path="run.args", text=own), context, plan)
    assert after == own.replace("model-parallel-size=8", "model-parallel-size=2")
