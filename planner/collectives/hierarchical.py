"""What a hierarchy needs besides the flat formulas: the phase of one level under a leader."""

import numpy as np

from planner.collectives.cost import CollectiveCost, Link, Number, cost_of
from planner.collectives.ring import ring_all_reduce


def leader_all_reduce(num_bytes: Number, num_ranks: Number, link: Link) -> CollectiveCost:
    """Chain reduce to a leader, chain broadcast from it: ``2(n-1) α + 2 S/B``.

    The inner phases of a hierarchy with one leader per unit; the outermost level is a ring of
    leaders. Source: Jia et al. 2018 (recalled; hierarchical all-reduce with masters).
    """
    n = np.asarray(num_ranks, dtype=float)
    sent = 2.0 * np.asarray(num_bytes, dtype=float)
    return cost_of(num_bytes, n, link, rounds=2.0 * (n - 1.0), sent_bytes=sent)


def hierarchical_all_reduce(
    num_bytes: Number, inner_ranks: Number, outer_ranks: Number, inner: Link, outer: Link
) -> CollectiveCost:
    """Reduce-scatter inside, all-reduce of the parts across, all-gather inside.

    ``2(i-1) α_in + 2(i-1)/i · S/B_in + 2(o-1) α_out + 2(o-1)/o · S/(i B_out)`` with i ranks
    inside, o units across, rings throughout. Source: Cho et al. 2019 (BlueConnect).
    """
    near = ring_all_reduce(num_bytes, inner_ranks, inner)
    far = ring_all_reduce(np.asarray(num_bytes, dtype=float) / inner_ranks, outer_ranks, outer)
    return CollectiveCost(
        time_s=near.time_s + far.time_s,
        rounds=near.rounds + far.rounds,
        sent_bytes=near.sent_bytes + far.sent_bytes,
    )
