"""Legality rules: masks over columns of strategies, and what is said of layouts that break them.

They are rows of ``rules.yaml``, whose conditions are computed over columns.
"""

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from math import prod
from typing import Any, Literal

import numpy as np

from planner.cost.context import Context
from planner.cost.stage_model import HOST_USABLE_FRACTION
from planner.expr import Functions, Names, computed, own_tree
from planner.layers.parameters import count_parameters
from planner.search.space.interleaving import has_legal_split
from planner.spec.cluster import NodeSpec
from planner.spec.model import ModelSpec, has_sinks
from planner.spec.strategy import (
    GPU_DEGREES,
    PLACEMENT_NAMES,
    SEQUENCE_DEGREES,
    SHAPE,
    STAGE_DEGREES,
    STRATEGY_FIELDS,
)
from planner.spec.traits import StateTraits
from planner.units import GIB, Array, Mask, ceil_div

Columns = Mapping[str, Array]
# The dimensions of one layout, names as their codes.
Row = Mapping[str, int]
# Where each part of a rule is kept, by what is said of a layout that breaks it, a template of
# :func:`filled`; the first counts.
Clauses = Mapping[str, Mask]
Check = Callable[[Context, Columns], Clauses]
Offerer = Literal["framework", "optimizer"]
# Their product is the number of GPUs; in the order they are decided.
GPUS = tuple(name for name in SHAPE if name in GPU_DEGREES)
# Degrees that a rule needs together, by what their product is.
PRODUCTS = {"gpus": GPUS, "stage_ranks": STAGE_DEGREES, "sequence_ranks": SEQUENCE_DEGREES}


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A named rule; it can be asked once the columns it ``needs`` are decided."""

    name: str
    needs: tuple[str, ...]
    message: str
    check: Check = field(compare=False)
    # The same of what is allowed here, with the numbers of model, job, cluster and software.
    allowed: str | Callable[[Context], str] = ""
    only_prunes: bool = False  # Legal, but never worth searching
    offered_by: Offerer | None = None
    """Whose choice it is, where the rule says what is offered at all."""

    def is_legal(self, context: Context, columns: Columns) -> Mask:
        """Rows that keep the rule."""
        legal: Mask = reduce(np.logical_and, self.check(context, columns).values())
        return legal

    def words(self, context: Context, row: Row) -> str:
        """Return how one layout breaks the rule, in words."""
        clauses = self.check(context, {name: np.array([value]) for name, value in row.items()})
        says = next(says for says, holds in clauses.items() if not np.all(holds))
        if says:
            return filled(says, context, row)
        given = ", ".join(f"{name}={row[name]}" for name in self.needs)
        return f"{self.message.splitlines()[0].rstrip('.')}; given {given}"

    def allowance(self, context: Context) -> str:
        """Return what is allowed here; empty where the rule does not state it."""
        allowed = self.allowed
        return filled(allowed, context, {}) if isinstance(allowed, str) else allowed(context)


def loading_gib(states: StateTraits, node: NodeSpec, model: ModelSpec) -> float:
    """Copies of a model that the ranks of a node load into host memory at the start."""
    copies = states.host_load_bytes * node.num_accelerators
    return copies * count_parameters(model) / GIB


_FUNCTIONS: Functions = {
    "has_legal_split": has_legal_split,
    "coded": lambda name, words: [STRATEGY_FIELDS[name].code(word) for word in words],
    "least": partial(min, default=0),
    "loading_gib": loading_gib,
    "any_between": lambda low, sizes, high: np.any(
        [(low < size) & (size < high) for size in sizes], axis=0
    ),
    "len": len,
}


def _coded(text: str) -> ast.expr:
    """A condition, with codes of the words that a column is compared with."""
    tree = own_tree(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            known = STRATEGY_FIELDS.get(ast.unparse(node.left))
            words = known.words if known else ()
            for part in ast.walk(ast.Tuple(node.comparators)):
                if isinstance(part, ast.Constant) and part.value in words:
                    part.value = words.index(str(part.value))
    return tree


def _names(context: Context, columns: Columns, **words: object) -> Names:
    """Columns, products of them, and parts of a context with what they have, by dotted names."""
    parts = parts_of(context)

    def ask(name: str) -> Any:  # noqa: ANN401 - a column, or whatever a part has
        if name in PRODUCTS:
            return prod(columns[each] for each in PRODUCTS[name])
        part, is_dotted, attribute = name.partition(".")
        return operator.attrgetter(attribute)(parts[part]) if is_dotted else columns[name]

    return Names(ask, _FUNCTIONS, **parts | words)


def stated_rule(name: str, row: Mapping[str, Any]) -> Rule:
    """The rule of a row of ``rules.yaml``."""
    needs = tuple(each for name in row["needs"] for each in PRODUCTS.get(name, (name,)))
    by_text = {text: _coded(each) for text, each in row["holds"].items()}
    allowed: Any = row.get("allowed", "")
    if not isinstance(allowed, str):
        texts = allowed

        def allowed(context: Context) -> str:
            return next(_names(context, {}).texts_that_hold(texts))

    def check(context: Context, columns: Columns) -> Clauses:
        names = _names(context, columns)
        every = np.zeros(np.broadcast_shapes(*(np.shape(columns[each]) for each in needs)), bool)
        return {text: every | (computed(tree, names) == 1) for text, tree in by_text.items()}

    how = {key: row[key] for key in ("only_prunes", "offered_by") if key in row}
    message = row["message"].strip()
    return Rule(name=name, needs=needs, message=message, check=check, allowed=allowed, **how)


def filled(template: str, context: Context, row: Row) -> str:
    """The template with a layout's values, by dimension, and attributes of the context's parts.

    ``{tp}`` is the layout's, ``{model.num_heads}`` the model's; ``{software}``, ``{gpus}``,
    ``{stage_ranks}``, ``{replica_ranks}``, ``{expert_ranks}`` and ``{micro_batches}`` stand for
    words; ``{nodes}`` are those of the layout, ``{share}`` sequences of a replica,
    ``{chunk_layers}`` those of a chunk.
    """
    traits, batch, node = context.traits, context.job.global_batch, context.cluster.node
    each = row.get("dp", 1) * row.get("micro_batch", 1)
    replica = {**row, "dp": row.get("dp", 1) // max(row.get("dp_replicate", 1), 1)}
    chunks = row.get("pp", 1) * row.get("vpp", 1)
    profile = "" if traits.profile == "current" else f" ({traits.profile})"
    known = {
        "software": f"{traits.name}{profile}",
        "gpus": product(row, GPU_DEGREES, "GPU"),
        "stage_ranks": product(row, STAGE_DEGREES, "rank"),
        "replica_ranks": product(replica, STAGE_DEGREES, "rank"),
        "expert_ranks": product(row, ("etp", "ep"), "expert rank"),
        "micro_batches": f"a batch of {batch} is {batch // each} micro-batches of {each} sequences",
        # Whole numbers of any size: plan files may state absurd ones.
        "nodes": -(-prod(row.get(name, 1) for name in GPU_DEGREES) // node.num_accelerators),
        "share": batch // row.get("dp", 1),
        "twice_pp": 2 * row.get("pp", 1),
        "twice_pp_less_one": 2 * row.get("pp", 1) - 1,
        "pieces": _pieces(row),
        "loading_gib": loading_gib(traits.states, node, context.model),
        "chunks": chunks,
        "chunk_layers": ceil_div(context.model.num_blocks, chunks),
    }
    values = {name: STRATEGY_FIELDS[name].value(code) for name, code in row.items()}
    return _names(context, {}, **known, **values).filled(template)


def _pieces(row: Row) -> str:
    """What a sequence is cut into, in words."""
    cuts = {"2 x cp {cp}": 2 * row.get("cp", 1) * (row.get("cp", 1) > 1)}
    cuts |= {"tp {tp}": row.get("tp", 1) * row.get("sequence_parallel", 0)}
    words = " x ".join(name.format(**row) for name, number in cuts.items() if number > 1)
    return f"{words} = {prod(number for number in cuts.values() if number > 1)} pieces"


def parts_of(context: Context) -> dict[str, Any]:
    """Parts of a context that rules speak of."""
    traits, moe, node = context.traits, context.model.moe, context.cluster.node
    model, placements = context.model, context.placements or traits.support.placements
    unusual = {
        f"is an {model.architecture}": model.architecture != "decoder",
        f"has a window of {model.sliding_window} tokens": model.sliding_window,
        "has attention sinks": has_sinks(model),
        "has linear mixers": model.mixer,  # their state goes from token to token
    }
    rooms = {
        "host_memory_gib": node.host_memory_bytes,
        "nvme_tb": node.nvme_bytes,
        "nvme_read_gb_per_s": node.nvme_read_bytes_per_s,
        "nvme_write_gb_per_s": node.nvme_write_bytes_per_s,
    }
    return {
        "unknown_rooms": tuple(name for name, value in rooms.items() if not value),
        "model": model,
        "unusual": " and ".join(words for words, holds in unusual.items() if holds),
        "moe": moe,
        "num_experts": moe.num_experts if moe else 0,
        "expert_width": moe.expert_ffn_size if moe else 0,
        "shared_width": moe.shared_ffn_size if moe else 0,
        "mixer": model.mixer,
        "second": model.with_attention("S"),
        "job": context.job,
        "cluster": context.cluster,
        "level_sizes": [level.num_accelerators for level in context.cluster.levels[:-1]],
        "first_placement": PLACEMENT_NAMES.index(placements[0]),
        "host_room_gib": HOST_USABLE_FRACTION * (node.host_memory_bytes or 0.0) / GIB,
        "node": node,
        "schedules": context.schedules,
        "traits": traits,
        "support": traits.support,
        "states": traits.states,
        "kernels": traits.kernels,
        "overlap": traits.overlap,
        "optimizer": traits.optimizer,
        "training": traits.training,
    }


def product(row: Row, names: Sequence[str], unit: str) -> str:
    """The degrees above one as a product with what they make."""
    degrees = {name: row[name] for name in names if row.get(name, 1) > 1}
    words = " x ".join(f"{name} {value}" for name, value in degrees.items()) or f"one {unit}"
    return f"{words} = {prod(degrees.values()):,} {unit}s" if len(degrees) > 1 else words
