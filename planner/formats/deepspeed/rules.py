"""What must hold in a DeepSpeed file: rules of the batch, of ZeRO, and of the parallel axes.

``enforced`` says whether DeepSpeedConfig itself refuses the file; what only the engine asserts, or
nothing does, is not. Rules look at values of the right kind only: others are findings already.
"""

from planner.formats.deepspeed import rules_axes, rules_batch, rules_params, rules_zero
from planner.formats.format import FormatRule

RULES: tuple[FormatRule, ...] = (
    *rules_batch.rule,
    *rules_params.rule,
    *rules_zero.rule,
    *rules_axes.rule,
)
