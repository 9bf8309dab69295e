"""How a 1-bit optimizer stands in a DeepSpeed file, for a release that has one."""

from collections.abc import Iterator

from planner.cost.context import Context
from planner.formats.decision import Decision, Line
from planner.formats.deepspeed import keys
from planner.formats.format import Value
from planner.formats.settings import Settings, decided, given
from planner.frameworks.registry import profile_names
from planner.spec.strategy import Strategy


def warm_up_steps(context: Context) -> int | None:
    """Steps of a 1-bit optimizer's warm-up; None where nobody says how long the job is."""
    tokens, job = context.job.total_tokens, context.job
    if tokens is None:
        return None
    return max(round(context.traits.exchange.value * tokens / job.tokens_per_iteration), 1)


def _to_exchange(context: Context, _: Strategy) -> Iterator[Line]:
    exchange, profile = context.traits.exchange, context.traits.profile
    if exchange.is_plain:
        return
    yield Line(
        key=keys.EXCHANGE, value=exchange.text, why=f"changes training: {exchange.method.changes}"
    )
    yield Line(
        key=keys.PROFILE, value=profile, why="release 0.19 has no 1-bit optimizers; this one has"
    )
    steps = warm_up_steps(context)
    if steps is not None:
        yield Line(key=keys.FREEZE, value=steps, why="steps of warm-up, with plain all-reduces")


def _of_exchange(settings: Settings) -> Iterator[tuple[str, Value]]:
    kind, stated_as = given(settings, keys.TYPE), given(settings, keys.EXCHANGE)
    names = {each.lower(): name for name, each in keys.ONE_BIT_TYPES.items()}
    if isinstance(kind, str) and kind.lower() in names:
        key = keys.TYPE if stated_as is None else keys.EXCHANGE
        value = names[kind.lower()] if stated_as is None else stated_as
        yield "gradient_exchange", decided(settings, key, value)
    profile = given(settings, keys.PROFILE)
    if profile in profile_names("deepspeed"):
        yield "profile", decided(settings, keys.PROFILE, profile)


EXCHANGE = Decision(
    names=("gradient_exchange", "profile"),
    keys=(keys.EXCHANGE, keys.PROFILE, keys.FREEZE),
    to=_to_exchange,
    of=_of_exchange,
)
