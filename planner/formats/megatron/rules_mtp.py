"""Rules about multi-token prediction: positions, its place in a layout, what goes beside it."""

from collections.abc import Iterator

from planner.formats.megatron.facts import Breach, Facts, rule
from planner.formats.megatron.layout import parse_layout
from planner.formats.megatron.settings import LAYOUT, MTP

UNIT = "--recompute-num-layers"


def mtp_shifts_positions(facts: Facts) -> Iterator[Breach]:
    """Further tokens are shifted: positions are rotary, or there are none."""
    option = "--position-embedding-type"
    kind = facts.word(option, "learned_absolute")
    if facts.on("--use-rotary-position-embeddings"):
        kind = "rope"
    if facts.number(MTP) and kind not in ("rope", "none"):
        yield MTP, f"{facts.number(MTP)} needs {option} rope or none; given {kind}"


def layout_holds_mtp(facts: Facts) -> Iterator[Breach]:
    """A layout names the layers of multi-token prediction, in one part behind all others."""
    try:
        parts = parse_layout(facts.word(LAYOUT))
    except ValueError:
        return
    if not facts.word(LAYOUT) or (MTP in facts.settings and not facts.given(MTP)):
        return
    number, flat = facts.number(MTP) or 0, "".join(parts)
    if flat.count("m") != number:
        yield LAYOUT, f"holds {flat.count('m')} layers m; {MTP} is {number}"
    elif "t" in flat.partition("m")[2]:
        yield LAYOUT, "has layers t behind m; all layers m stand behind them"
    elif number not in (0, max(part.count("m") for part in parts)):
        yield LAYOUT, "has layers m in several parts; all stand in one"
    elif any("m" in part for part in parts[: -facts.pp]):
        yield LAYOUT, "has layers m before a stage's last part; allowed is the last"


def mtp_recomputes_single_layers(facts: Facts) -> Iterator[Breach]:
    """Layers of multi-token prediction are recomputed one by one."""
    is_full = facts.word("--recompute-granularity") == "full"
    is_uniform = facts.word("--recompute-method") == "uniform"
    if facts.number(MTP) and is_full and is_uniform and facts.number(UNIT) not in (None, 1):
        yield UNIT, f"must be 1 beside {MTP}; given {facts.number(UNIT)}"


RULES = (
    rule(mtp_shifts_positions, "megatron/training/arguments.py"),
    rule(layout_holds_mtp, "megatron/core/transformer/pipeline_parallel_layer_layout.py"),
    rule(
        mtp_recomputes_single_layers,
        "megatron/core/transformer/multi_token_prediction.py, in the first step",
        enforced=False,
    ),
)
