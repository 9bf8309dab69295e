"""Plan files of mixed machines: a pipeline through pools, written and read back."""

from collections.abc import Iterator
from pathlib import Path

from planner.catalog.clusters import load_cluster
from planner.catalog.pools import is_mixed, load_mixed
from planner.errors import InputError
from planner.plans.plan_file import (
    EstimatePart,
    PlanFile,
    check_legal,
    context_of,
    plan_text,
    read_file,
    strategy_of,
)
from planner.pools.answer import MixedPlan, pipeline_plan
from planner.pools.pipelines import SCHEDULE, PoolContext, priced_pipeline
from planner.search.space.legality import Violation, violations
from planner.spec.pools import MixedCluster
from planner.spec.strategy import PLACEMENT_NAMES, Strategy


def mixed_plan_text(plan: MixedPlan, *, model: str, cluster: str) -> str:
    """The plan file of a pipeline through pools, or of a plan on one of them.

    ``cluster`` is the file that has the pools.
    """
    first = plan.parts[0]
    if plan.kind == "one pool":
        return plan_text(first.plan, model=model, cluster=f"{cluster}:{first.pool.name}")
    made = EstimatePart(iter_time_s=plan.iteration_s, peak_bytes=plan.peak_bytes, mfu=plan.mfu)
    stages = {part.pool.name: len(part.stages) for part in plan.parts}
    return plan_text(first.plan, model=model, cluster=cluster, pools=stages, estimate=made)


def load_mixed_plan(path: Path) -> tuple[MixedCluster, MixedPlan, PlanFile]:
    """The pools of a file and its plan, priced again; raises InputError with every problem.

    Excludes memory: what does not fit is a plan all the same.
    """
    file = read_file(path)
    if not is_mixed(file.inputs.cluster):
        message = f"must be a cluster file with pools; given {file.inputs.cluster!r}"
        raise InputError.single(str(path), "inputs.cluster", message)
    mixed = load_mixed(file.inputs.cluster, load_cluster)
    known = {pool.name: pool for pool in mixed.pools}
    if len(file.pools) < 2 or not known.keys() >= file.pools.keys():
        message = f"two or more of {', '.join(known)}, each with its stages"
        given = ", ".join(file.pools) or "none"
        raise InputError.single(str(path), "pools", f"must be {message}; given {given}")
    pools = [
        PoolContext(
            pool=known[name],
            context=context_of(file.inputs, path, f"{file.inputs.cluster}:{name}"),
        )
        for name in file.pools
    ]
    strategy = strategy_of(file, path, pools[0].context)
    check_legal(path, _broken(pools, strategy, file))
    stages = tuple(file.pools.values())
    return mixed, pipeline_plan(priced_pipeline(pools, stages, strategy, mixed.between)), file


def _broken(pools: list[PoolContext], strategy: Strategy, file: PlanFile) -> Iterator[Violation]:
    """What some pool does not allow, each once, and what pipelines through pools never are."""
    for name, only in (("schedule", SCHEDULE), ("placement", PLACEMENT_NAMES[0])):
        if getattr(strategy, name) != only:
            text = f"through pools allowed is {only}; given {getattr(strategy, name)}"
            yield Violation(key=name, text=text)
    ranks = strategy.num_gpus // strategy.pp
    stages = {each.pool.name: each.pool.num_accelerators // ranks for each in pools}
    if stages != file.pools or sum(stages.values()) != strategy.pp:
        text = ", ".join(f"{name} {number}" for name, number in stages.items())
        given = ", ".join(f"{name} {number}" for name, number in file.pools.items())
        message = f"stages of {ranks} GPUs must fill the pools: {text}; given {given}"
        yield Violation(key="pp", text=f"{message}, pp {strategy.pp}")
    total = sum(each.pool.num_accelerators for each in pools)
    found = (one for each in pools for one in violations(each.spanning(total), strategy))
    yield from dict.fromkeys(found)
