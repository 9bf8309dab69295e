"""How a training script under Accelerate is told that replicas keep in step otherwise."""

from collections.abc import Iterator, Mapping

from planner.cost.context import Context
from planner.formats.format import Decided

HOOKS: Mapping[str, str] = {"fp16": "FP16", "bf16": "BF16", "powersgd": "POWER_SGD"}
"""Members of DDPCommunicationHookType (accelerate/utils/dataclasses.py), by the way of exchange."""


def exchange_lines(context: Context, script: str) -> Iterator[Decided]:
    """What the script passes to Accelerator, or runs its loop in; nothing for plain all-reduces."""
    exchange = context.traits.exchange
    if exchange.is_plain:
        return
    why = f"changes training: {exchange.method.changes}"
    if exchange.name not in HOOKS:
        call = f"LocalSGD(accelerator, model, local_sgd_steps={exchange.value:.0f})"
        key = f"{script}: with accelerate.local_sgd.{call} as averaging"
        yield Decided(key=key, value="averaging.step() behind every optimizer step", why=why)
        return
    words = [f"comm_hook=DDPCommunicationHookType.{HOOKS[exchange.name]}"]
    if exchange.name == "powersgd":
        words.append(f"comm_state_option={{'matrix_approximation_rank': {exchange.value:.0f}}}")
    key = f"{script}: DistributedDataParallelKwargs({', '.join(words)})"
    yield Decided(key=key, value="pass it to Accelerator(kwargs_handlers=[...])", why=why)
