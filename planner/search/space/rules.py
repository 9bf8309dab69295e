"""All legality rules, in the order in which they are asked and broken ones are named."""

import numpy as np

from planner.cost.context import Context
from planner.search.space import rules_ranks, rules_shape, rules_states
from planner.search.space.rule import GPUS, Columns, Rule, rule
from planner.spec.strategy import gpus_of
from planner.units import Mask

THEMES = (rules_shape, rules_ranks, rules_states)


RULES: tuple[Rule, ...] = tuple(
    one for theme in THEMES for one in vars(theme).values() if isinstance(one, Rule)
)


@rule(*GPUS, only_prunes=True)
def whole_cluster(context: Context, columns: Columns) -> Mask:
    """The layout uses all GPUs of the cluster."""
    return np.asarray(gpus_of(columns) == context.cluster.num_accelerators)


# Asked beside RULES where plans for a part of the cluster are of no interest.
WHOLE_CLUSTER = whole_cluster
