"""What frozen weights would leave of the memory that training all of them needs."""

from planner.cost.context import Context
from planner.frameworks.settings import training_frameworks
from planner.layers.parameters import count_parameters
from planner.units import format_bytes

HALF_BYTES = 2.0
QUARTER_BYTES = 4.127 / 8.0
"""Four bits and the constants of their blocks, themselves quantised: QLoRA, arXiv 2305.14314,
section 3 (4-bit NormalFloat, double quantisation: 0.127 bits per parameter)."""
MOST_SHARE = 0.8
"""Of usable HBM; the rest is for adapters, their states and activations."""


def frozen_words(context: Context) -> str:
    """A sentence on training adapters beside frozen weights; empty where those do not fit either.

    ``bytes · parameters / GPUs``, sharded over all of them. Excludes adapters (about a hundredth
    of the parameters, with states), activations and the loss.
    """
    if context.traits.training.is_frozen:
        return ""
    num_gpus = context.cluster.num_accelerators
    held = [
        (num_bytes * count_parameters(context.model) / num_gpus, words)
        for num_bytes, words in (
            (HALF_BYTES, "in 16 bits (--train lora)"),
            (QUARTER_BYTES, "in 4 bits (--train qlora)"),
        )
    ]
    fitting = [
        f"{format_bytes(num_bytes)} {words}"
        for num_bytes, words in held
        if num_bytes <= MOST_SHARE * context.usable_bytes
    ]
    if not fitting:
        return ""
    named = f"--framework {', '.join(training_frameworks('lora'))}"
    return (
        f"frozen weights would take {' or '.join(fitting)} of {format_bytes(context.usable_bytes)} "
        f"per GPU, without gradients or states of theirs; {named} plans adapters beside them"
    )
