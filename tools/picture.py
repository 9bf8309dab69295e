"""Draws docs/memory.svg: one rank's HBM over an iteration, from the ledger of a real layout."""

from planner.answers.layout import requested, resolve
from planner.catalog import EXAMPLE_NODE
from planner.catalog.clusters import load_cluster
from planner.catalog.models import load_model
from planner.cost.context import Context
from planner.cost.ledger import stage_ledger
from planner.cost.stage_model import price
from planner.frameworks.registry import load_traits
from planner.spec.job import JobSpec
from planner.units import GIB

MODEL, CLUSTER = "llama3.1-70b", f"4x{EXAMPLE_NODE}"
STAGES, MICRO_BATCHES = 4, 8
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 880, 400, 56, 210, 34, 44
COLOURS = ("#4c78a8", "#72b7b2", "#9ecae9", "#b8b8b8", "#f58518", "#e45756")
LABELS = (
    "weights",
    "gradients",
    "optimizer states",
    "overheads: context, communicators, unused",
    "activations kept for backward",
    "transients: a layer's backward",
)


def ledger_groups() -> tuple[list[float], float, float, float]:
    """GiB of the lasting groups, of one micro-batch's activations, of transients, and of HBM."""
    cluster = load_cluster(CLUSTER)
    context = Context(
        model=load_model(MODEL),
        job=JobSpec(global_batch=MICRO_BATCHES, seq_len=8192),
        cluster=cluster,
        traits=load_traits("megatron"),
    )
    context, strategy = resolve(context, requested(tp=8, pp=STAGES))
    ledger = stage_ledger(price(context, strategy), 0)
    groups = dict.fromkeys(("weights", "gradients", "optimizer", "other"), 0.0)
    activations = transient = 0.0
    for item in ledger.items:
        head = item.name.partition(".")[0]
        if head == "activations":
            activations += item.num_bytes / GIB
        elif head == "transient":
            transient += item.num_bytes / GIB
        else:
            groups[head if head in groups else "other"] += item.num_bytes / GIB
    hbm = cluster.accelerator.hbm_bytes / GIB
    return list(groups.values()), activations / STAGES, transient, hbm


def timeline() -> list[tuple[str, int, bool]]:
    """Moments of stage 0 under 1F1B: label, micro-batches in flight, whether it runs backward."""
    events = [(f"F{i}", i, False) for i in range(1, STAGES + 1)]
    for i in range(1, MICRO_BATCHES - STAGES + 1):
        events += [(f"B{i}", STAGES, True), (f"F{STAGES + i}", STAGES, False)]
    remaining = range(MICRO_BATCHES - STAGES + 1, MICRO_BATCHES + 1)
    events += [(f"B{i}", MICRO_BATCHES - i + 1, True) for i in remaining]
    return [("start", 0, False), *events, ("step", 0, False)]


def _steps(heights: list[float], scale_x: float, scale_y: float) -> list[str]:
    points = []
    for index, height in enumerate(heights):
        y = HEIGHT - BOTTOM - height * scale_y
        points += [f"{LEFT + index * scale_x:.1f},{y:.1f}"]
        points += [f"{LEFT + (index + 1) * scale_x:.1f},{y:.1f}"]
    return points


def memory_picture() -> str:
    """Return the SVG."""
    lasting, activation, transient, hbm = ledger_groups()
    events = timeline()
    bands = [[size] * len(events) for size in lasting]
    bands.append([activation * in_flight for _, in_flight, _ in events])
    bands.append([transient * backward for *_, backward in events])
    scale_x = (WIDTH - LEFT - RIGHT) / len(events)
    scale_y = (HEIGHT - TOP - BOTTOM) / (hbm * 1.02)
    lines = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
            'font-family="sans-serif" font-size="11">'
        ),
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        (
            f'<text x="{LEFT}" y="18" font-size="13">{MODEL}, Megatron-LM, tp 8, pp 4, dp 1, '
            "sequences of 8192: HBM of one rank of stage 0 over an iteration</text>"
        ),
    ]
    base = [0.0] * len(events)
    for band, colour, label in zip(bands, COLOURS, LABELS, strict=True):
        top = [low + size for low, size in zip(base, band, strict=True)]
        points = _steps(top, scale_x, scale_y) + _steps(base, scale_x, scale_y)[::-1]
        lines.append(f'<polygon points="{" ".join(points)}" fill="{colour}"/>')
        middle = max((low + high) / 2 for low, high in zip(base, top, strict=True))
        y = HEIGHT - BOTTOM - middle * scale_y + 4
        first, _, rest = label.partition(": " if ": " in label else ", ")
        lines.append(f'<text x="{WIDTH - RIGHT + 8}" y="{y:.0f}" fill="#222">{first}</text>')
        if rest:
            lines.append(
                f'<text x="{WIDTH - RIGHT + 8}" y="{y + 12:.0f}" font-size="9" '
                f'fill="#555">{rest}</text>'
            )
        base = top
    for index, (name, *_) in enumerate(events):
        x = LEFT + (index + 0.5) * scale_x
        lines.append(f'<text x="{x:.1f}" y="{HEIGHT - 26}" text-anchor="middle">{name}</text>')
    for gib in range(0, int(hbm) + 1, 20):
        y = HEIGHT - BOTTOM - gib * scale_y
        lines.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{gib}</text>')
    y = HEIGHT - BOTTOM - hbm * scale_y
    lines += [
        (
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#222" '
            'stroke-dasharray="4 3"/>'
        ),
        f'<text x="{WIDTH - RIGHT + 8}" y="{y + 4:.1f}">HBM, {hbm:.1f} GiB</text>',
        (
            f'<text x="{LEFT}" y="{HEIGHT - 8}" fill="#555">F, B: forward and backward of a '
            "micro-batch; at most pp = 4 are in flight on the first stage. GiB.</text>"
        ),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"
