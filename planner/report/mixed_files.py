"""A pipeline over pools as files: the framework's own, and which node belongs to which pool.

A framework of one program and equal options on all ranks can say it: layers of every stage are an
option, and which machine holds a stage is the order in which nodes are numbered.
"""

from collections.abc import Iterator

from planner.errors import ExpressError
from planner.formats.format import Emitted, Format, OutputFile
from planner.launchers.launcher import Launcher
from planner.launchers.registry import load_launcher
from planner.pools.answer import MixedAnswer, MixedPlan
from planner.report.emitted import PLAN, README
from planner.report.mixed import run_line, time_line
from planner.units import GIB

NODES = "nodes.txt"
SAYS_STAGES = ("bridge", "megatron", "torchtitan")
"""Formats that give every stage its own number of layers, stages by ascending rank."""
LAUNCHER = "torchrun"


def mixed_files(made: Format, found: MixedAnswer, plan_file: str) -> tuple[OutputFile, ...]:
    """All files of the best plan that a format can say, with the text of its plan file.

    Raises ExpressError with every reason.
    """
    plan = found.first
    reasons = list(_reasons(made, plan))
    if reasons:
        raise ExpressError("\n".join(reasons))
    emitted = [made.emit(part.context, part.strategy) for part in plan.parts]
    launcher = load_launcher(LAUNCHER)
    if any(_words(each) != _words(emitted[0]) for each in emitted):
        raise ExpressError(
            f"{made.title} would be started with other options or variables in each pool, which "
            "one job does not take; plan with one pool"
        )
    problems = launcher.problems(plan.context, plan.strategy)
    if problems:
        raise ExpressError("\n".join(problems))
    return (
        *emitted[0].files,
        *launcher.files(emitted[0], plan.context, plan.strategy),
        OutputFile(name=NODES, text=nodes_text(plan)),
        OutputFile(name=PLAN, text=plan_file),
        OutputFile(name=README, text=_readme(plan, launcher)),
    )


def _words(emitted: Emitted) -> tuple[object, ...]:
    return emitted.files, tuple(emitted.command), dict(emitted.environment)


def is_writable(plan: MixedPlan) -> bool:
    """Whether the format of its framework's own name says the plan."""
    return plan.kind == "pipeline" and plan.framework in SAYS_STAGES and len(_node_sizes(plan)) == 1


def _node_sizes(plan: MixedPlan) -> list[int]:
    """How many GPUs nodes have, each number once."""
    return sorted({part.pool.cluster.node.num_accelerators for part in plan.parts})


def _reasons(made: Format, plan: MixedPlan) -> Iterator[str]:
    """Why a format cannot say a plan on several kinds of machines."""
    if made.name not in SAYS_STAGES:
        yield (
            f"{made.title}: no file of it says which machine holds which layers, or gives pools "
            f"unequal batches; allowed is {', '.join(SAYS_STAGES)}"
        )
    if plan.kind == "one pool":
        name = plan.parts[0].pool.name
        yield (
            f"the best plan that files can say uses {name} alone; `planner plan` with "
            f"FILE.yaml:{name} writes it"
        )
    sizes = _node_sizes(plan)
    if len(sizes) > 1:
        given = " and ".join(map(str, sizes))
        yield (
            f"nodes of {given} GPUs in one job: the launch script starts as many processes on "
            "every node; allowed are pools with equal nodes"
        )


def nodes_text(plan: MixedPlan) -> str:
    """Which NODE_RANK a node of each pool gets, a line each."""
    lines, rank = ["# NODE_RANK  pool  node"], 0
    for part in plan.parts:
        size = part.pool.cluster.node.num_accelerators
        for _ in range(part.num_gpus // size):
            lines.append(f"{rank} {part.pool.name} {part.pool.cluster.node.name}")
            rank += 1
    return "\n".join(lines) + "\n"


def _readme(plan: MixedPlan, launcher: Launcher) -> str:
    """What the folder is, which nodes get which numbers, and what to expect."""
    rank, rows = 0, list[str]()
    for part in plan.parts:
        size = part.pool.cluster.node.num_accelerators
        number = part.num_gpus // size
        stages = _span(part.stages.start, len(part.stages))
        layers = ", ".join(map(str, part.layers))
        peak = f"{part.peak_bytes / GIB:.1f} of {part.hbm_bytes / GIB:.1f}"
        node = part.pool.cluster.node.name
        rows.append(
            f"| {_span(rank, number)} | {part.pool.name} | {node} | {stages} | {layers} "
            f"| {peak} |\n"
        )
        rank += number
    return (
        f"# {plan.context.model.name} on mixed machines\n\n"
        f"{run_line(plan)}\nExpected: {time_line(plan)}.\n\n"
        "Stages belong to machines by the numbers of their nodes, so every node must be started "
        "with the NODE_RANK of its pool:\n\n"
        "| NODE_RANK | pool | node | stages | layers | GiB of the fullest GPU |\n"
        "|---|---|---|---|---|---|\n" + "".join(rows) + f"\n{launcher.start}\n"
    )


def _span(first: int, number: int) -> str:
    """Consecutive numbers: ``8 to 15``, or the one."""
    return f"{first} to {first + number - 1}" if number > 1 else str(first)
