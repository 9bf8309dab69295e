"""Rules of layouts whose words are computed; those that a condition says are in ``rules.yaml``."""

import numpy as np

from planner.cost.context import Context
from planner.cost.stage_model import HOST_USABLE_FRACTION
from planner.layers.parameters import count_parameters
from planner.search.space.rule import Clauses, Columns, Row, is_schedule, offloads, rule
from planner.spec.model import has_sinks
from planner.spec.strategy import PLACEMENT_NAMES, SCHEDULES, STAGE_DEGREES, gpus_of, ranks_of_stage
from planner.units import GIB, Array


@rule("cp", allowed="{traits.name} runs {support.cp_attention} attention so")
def cp_fits_attention(context: Context, columns: Columns) -> Clauses:
    """Context parallelism runs attention without biases; some frameworks': plain causal alone."""
    model = context.model
    unusual = {
        "is an {model.architecture}": model.architecture != "decoder",
        "has a window of {model.sliding_window} tokens": model.sliding_window,
        "has attention sinks": has_sinks(model),
        "has linear mixers": model.mixer,  # their state goes from token to token
    }
    why = " and ".join(words for words, holds in unusual.items() if holds)
    whole = columns["cp"] == 1
    bare = whole | (model.position not in ("alibi", "relative"))
    plain = whole | (not why or context.traits.support.cp_attention == "any")
    given = "cp {cp}: {software} runs"
    return {
        f"{given} no biased attention, and {{model.name}} has {{model.position}} positions": bare,
        f"{given} plain causal attention alone, and {{model.name}} {why}": plain,
    }


def _least_micro_batches(pp: Array) -> dict[str, Array]:
    """Return the micro-batches that fill each split-backward schedule; others take any number."""
    both = 2 * pp - 1
    return {"zb-h1": pp, "zb-h2": both, "zb-v": both, "dualpipe-v": 2 * pp}


def _too_few_to_split(_: Context, row: Row) -> str:
    least = _least_micro_batches(np.array(row["pp"])).get(SCHEDULES[row["schedule"]], 1)
    return f"{{micro_batches}}: {{schedule}} with pp {{pp}} needs {least}"


@rule("pp", "dp", "micro_batch", "schedule")
def schedule_fills(context: Context, columns: Columns) -> Clauses:
    """Split backwards need micro-batches: zb-h1 p, zb-h2 and zb-v 2p - 1, dualpipe-v 2p."""
    least = _least_micro_batches(columns["pp"])
    asked = np.select([is_schedule(columns, name) for name in least], [*least.values()], 1)
    num = context.job.global_batch // (columns["dp"] * columns["micro_batch"])
    return {_too_few_to_split: num >= asked}


def _uneven_pieces(_: Context, row: Row) -> str:
    cuts = {"2 x cp {cp}": 2 * row["cp"] * (row["cp"] > 1)}
    cuts |= {"tp {tp}": row["tp"] * (row["tp"] > 1) * row["sequence_parallel"]}
    cuts = {words: num for words, num in cuts.items() if num}
    pieces = f"{' x '.join(cuts)} = {np.prod([*cuts.values()])} pieces"
    return f"{{job.seq_len}} tokens do not divide into {pieces}"


@rule("tp", "cp", "sequence_parallel")
def sequence_divisible(context: Context, columns: Columns) -> Clauses:
    """Context parallelism cuts the sequence into 2·cp pieces, sequence parallelism into tp."""
    cp = columns["cp"]
    pieces = np.where(cp > 1, 2 * cp, 1)
    pieces = pieces * np.where(columns["sequence_parallel"] == 1, columns["tp"], 1)
    return {_uneven_pieces: context.job.seq_len % pieces == 0}


def _room(context: Context) -> str:
    node = context.cluster.node
    figures = {
        "host_memory_gib": node.host_memory_bytes,
        "nvme_tb": node.nvme_bytes,
        "nvme_read_gb_per_s": node.nvme_read_bytes_per_s,
        "nvme_write_gb_per_s": node.nvme_write_bytes_per_s,
    }
    unknown = ", ".join(name for name, value in figures.items() if not value)
    if not unknown:
        return "all are known of {node.name}"
    return f"{{node.name}} has no {unknown}, which overrides of a cluster file can give"


@rule("offload", allowed=_room)
def offload_has_room(context: Context, columns: Columns) -> Clauses:
    """The node's host memory (or NVMe size and rates) is known, so that a limit can be kept."""
    node = context.cluster.node
    figures = (node.nvme_bytes, node.nvme_read_bytes_per_s, node.nvme_write_bytes_per_s)
    host = ~offloads(columns, "host") | bool(node.host_memory_bytes)
    nvme = ~offloads(columns, "nvme") | all(figures)
    unknown = "of {node.name} is not known"
    return {
        f"offload {{offload}}: the host memory {unknown}": host,
        f"offload {{offload}}: the NVMe (size, read and write rate) {unknown}": nvme,
    }


def _host_room_gib(context: Context) -> float:
    return HOST_USABLE_FRACTION * (context.cluster.node.host_memory_bytes or 0.0) / GIB


@rule(
    *("zero_stage", "offload"),
    allowed=lambda context: (
        f"{_host_room_gib(context):,.1f} GiB of {{node.name}} are usable, or ZeRO 3"
    ),
)
def host_holds_loading(context: Context, columns: Columns) -> Clauses:
    """Beside states offloaded to it, host memory holds the copies that ranks load at the start."""
    copies = context.traits.states.host_load_bytes * context.cluster.node.num_accelerators
    loading_gib = copies * count_parameters(context.model) / GIB
    taken = np.where(columns["zero_stage"] < 3, loading_gib, 0.0)
    says = (
        "offload {offload} under ZeRO {zero_stage}: {node.num_accelerators} ranks load a copy "
        f"of the model each, {loading_gib:,.1f} GiB of host memory"
    )
    return {says: ~offloads(columns, "host") | (taken <= _host_room_gib(context))}


@rule(*(*STAGE_DEGREES, "pp", "placement"), only_prunes=True)
def placement_matters(context: Context, columns: Columns) -> Clauses:
    """Only the first placement searched where pp or dp is 1, or no network level divides them."""
    inner = ranks_of_stage(columns) // columns["dp"]
    whole = gpus_of(columns)
    sizes = [level.num_accelerators for level in context.cluster.levels[:-1]]
    between = [(inner < size) & (size < whole) for size in sizes]
    divided = np.any(between, axis=0)
    searched = context.placements or context.traits.support.placements
    first = PLACEMENT_NAMES.index(searched[0])
    differs = divided & (columns["dp"] > 1) & (columns["pp"] > 1)
    says = "placement {placement} with dp {dp} and pp {pp} costs what the first one does"
    return {says: differs | (columns["placement"] == first)}
