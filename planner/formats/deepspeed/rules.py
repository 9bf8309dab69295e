"""What must hold in a DeepSpeed file: rules of the batch, of ZeRO, and of the parallel axes.

``enforced`` says whether DeepSpeedConfig itself refuses the file; what only the engine asserts, or
nothing does, is not. Rules look at values of the right kind only: others are findings already.
"""

from planner.formats.deepspeed.rules_axes import AXIS_RULES
from planner.formats.deepspeed.rules_batch import BATCH_RULES
from planner.formats.deepspeed.rules_zero import ZERO_RULES
from planner.formats.format import FormatRule

RULES: tuple[FormatRule, ...] = (*BATCH_RULES, *ZERO_RULES, *AXIS_RULES)
