"""Parameter servers: gradients are pushed to servers, parameters pulled from them."""

import numpy as np

from planner.collectives.cost import CollectiveCost, Link, Number, cost_of
from planner.units import Array


def parameter_server_all_reduce(
    num_bytes: Number, num_ranks: Number, link: Link, num_servers: Number = 1
) -> CollectiveCost:
    """Push, then pull, of n workers to k servers: ``2 (α + (n-2) o) + 2 max(n/k, 1) S/B``.

    Each server takes in and gives out ``n S / k``; from k = n on the workers' own links are the
    limit. It starts the messages to its workers one after the other, o apart. Source: Li et al.
    2014 (parameter server), Jiang et al. 2020 (BytePS), both recalled.
    """
    busiest = np.maximum(np.asarray(num_ranks, dtype=float) / num_servers, 1.0)
    messages = np.asarray(num_ranks, dtype=float) - 1.0
    sent = 2.0 * busiest * num_bytes
    path = cost_of(num_bytes, num_ranks, link, rounds=2.0, sent_bytes=sent, messages=messages)
    return CollectiveCost(time_s=path.time_s, rounds=path.rounds, sent_bytes=path.sent_bytes / 2.0)


def parameter_server_ingress_bytes_per_s(
    num_bytes: Number, num_workers: Number, iterations_per_s: Number, num_servers: Number = 1
) -> Array:
    """Gradients that reach one server per second: ``S · iterations/s · n / k``.

    Source: Li et al. 2014 (recalled). Compare it with the server's network port.
    """
    pushed: Array = np.asarray(num_bytes) * iterations_per_s * num_workers / num_servers
    return pushed
