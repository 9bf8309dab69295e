"""Layouts that an answer shows, decided once more by CP-SAT: ``planner plan --prove``.

The search sets strategies aside by bounds, tabulates stages and deals layers out by dynamic
programming. Here every strategy of a layout, under every policy and set of modules, is an integer
program over the coefficients of its StageModel instead, which asks for a faster split.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from ortools.sat.python import cp_model

from planner.cost.context import Context, with_modules
from planner.cost.stage import StageModel, all_stages
from planner.cost.stage_model import stage_model
from planner.search.ranking.candidates import LAYOUT
from planner.search.ranking.penalties import evidence_penalty, policy_penalty
from planner.search.space.interleaving import full_stage_layers, has_equal_chunks
from planner.search.space.narrow import Narrowing
from planner.search.space.policies import (
    Policy,
    of_kinds,
    offered,
    part_numbers,
    policies_of,
    with_part,
)
from planner.search.space.space import Enumeration
from planner.search.stages.bounds import bound_s, least_work_s
from planner.search.stages.capacity import layer_ranges
from planner.search.stages.cp_sat import deterministic_solver
from planner.spec.strategy import IN_STAGE, POLICIES, Strategy

# Faster by less is rounding: sums in another order, and seconds as integers.
ROUNDING = 1e-6
TICKS = 2**40  # Units of time of a program: so many are its limit
MOST_BYTES = 2.0**60  # More than any host has: integers of CP-SAT end at 2**63
# Of a stage: number of layers, and whether there are any, by policy.
UnderPolicies = dict[int, tuple[cp_model.IntVar, cp_model.IntVar]]


@dataclass(frozen=True, kw_only=True)
class Proof:
    """Result of asking CP-SAT for anything faster than what was found."""

    num_layouts: int
    num_programs: int
    num_undecided: int  # They ran out of work
    faster: tuple[str, ...]  # Degrees of layouts that hold something faster
    seconds: float


def prove(
    context: Context, narrowing: Narrowing, layouts: Sequence[Strategy], fastest_s: float
) -> Proof:
    """Ask each layout for a plan whose time, with penalties, is below ``fastest_s``."""
    started = time.perf_counter()
    context = replace(context, ranking="evidence")
    num_programs = 0
    num_undecided = 0
    faster: list[str] = []
    for layout in layouts:
        fixed = {name: (int(getattr(layout, name)),) for name in LAYOUT}
        within = replace(narrowing, values={**narrowing.values, **fixed})
        for model, limit_s in _programs(context, within, fastest_s * (1.0 - ROUNDING)):
            found = has_split(model, limit_s)
            num_programs += 1
            num_undecided += found is None
            if found:
                faster.append(str(layout.degrees))
    return Proof(
        num_layouts=len(layouts),
        num_programs=num_programs,
        num_undecided=num_undecided,
        faster=tuple(faster),
        seconds=time.perf_counter() - started,
    )


def _programs(
    context: Context, narrowing: Narrowing, below_s: float
) -> Iterator[tuple[StageModel, float]]:
    """Yield the model of every strategy under every policy, and the time it must be below.

    But for those that take as long with equal stages, or do not fit with the fewest layers.
    """
    enumeration = Enumeration(context=context, narrowing=narrowing)
    strategies = enumeration.strategies_of(enumeration.shapes())[0]
    for policy in policies_of(context, narrowing):
        sets = context.module_sets if "selective" in policy.kinds else ()
        for modules in sets or (None,):
            model = stage_model(with_modules(context, modules), strategies)
            model = _under(model.take(offered(model, policy)), policy)
            limit_s = below_s / evidence_penalty(context, model.strategy)
            if not policy.is_mixed:
                limit_s = limit_s / policy_penalty(policy.kinds[-1], modules, context)
            pp = model.strategy.pp
            stages = all_stages(int(pp.max(initial=1)))
            fewest, _ = layer_ranges(model, stages)
            may_fit = policy.is_mixed | model.fits(fewest)
            may_be_faster = bound_s(model, least_work_s(model) / pp) < limit_s
            for row in np.flatnonzero(may_fit & may_be_faster).tolist():
                one = slice(row, row + 1)
                yield model.take(one), float(limit_s[row])


def _under(model: StageModel, policy: Policy) -> StageModel:
    if policy.part is None:
        return of_kinds(model, policy.kinds)
    rows, number = part_numbers(model)
    return with_part(model.take(rows), policy.part, number)


def has_split(model: StageModel, below_s: float) -> bool | None:
    """True if CP-SAT finds a split of the one strategy that takes less; None: out of work.

    Integers: n_i layers of stage i, c_ki of them under policy k, u_ki = [c_ki > 0]. Asks for
    ``m v max T_i + max(Σ T_i - max T_i - filled, 0) + v (max tail_i + constant) < v below`` where
    ``T_i = n_i t + Σ_k (c_ki a_k + u_ki b_k) + fixed_i``, with the memory of device and host within
    their limits. Seconds are in units of 2**-40 of ``below_s``, bytes are whole.
    """
    strategy = model.strategy
    vpp = int(strategy.vpp[0])
    stages = all_stages(int(strategy.pp[0]))
    fewest, most = layer_ranges(model, stages)
    if (fewest > most).any():
        return False
    ranges = np.concatenate([fewest, most]).astype(int).T.tolist()

    def ticks(seconds: float) -> int:
        return round(seconds / below_s * TICKS)

    problem = cp_model.CpModel()
    layers = [problem.new_int_var(few, many, "") for few, many in ranges]
    problem.add(cp_model.LinearExpr.sum(layers) == model.num_layers)
    if vpp > 1 and not has_equal_chunks(strategy)[0]:
        full = full_stage_layers(model.num_layers, strategy.pp, strategy.vpp)[0]
        problem.add_max_equality(int(full), layers)
    slowest = problem.new_int_var(0, TICKS, "")
    tail = problem.new_int_var(0, TICKS, "")
    bubble = problem.new_int_var(0, len(layers) * TICKS, "")
    first, last = model.ends(stages)
    fixed_s = model.fixed_time_s(stages)[0]
    tail_ends_s = first * model.tail_first_s[:, :1] + last * model.tail_last_s[:, :1]
    sum_s = cp_model.LinearExpr.sum([])
    for stage, n in enumerate(layers):
        under = _under_policies(problem, model, n, ranges[stage][1])
        _keep_within_memory(problem, model, stage, n, under)
        seconds = ticks(model.layer_s[0]) * n + ticks(fixed_s[stage])
        for k, (number, is_used) in under.items():
            added_s = model.policies.added_s[k, 0]
            fill_s = model.policies.fill_s[k, 0]
            seconds += ticks(added_s) * number
            seconds += ticks(fill_s) * is_used
        problem.add(slowest >= seconds)
        sum_s += seconds
        for piece, layer_s in enumerate(model.tail_layer_s[:, 0]):
            end_s = tail_ends_s[piece, stage]
            problem.add(tail >= ticks(layer_s) * n + ticks(end_s))
    filled = ticks(model.bubble_filled_s[0])
    problem.add(bubble >= sum_s - slowest - filled)
    num_passes = vpp * int(strategy.num_micro_batches[0])
    left = vpp * (TICKS - ticks(model.constant_s[0]))
    problem.add(num_passes * slowest + bubble + vpp * tail < left)
    status = deterministic_solver().solve(problem)
    return None if status == cp_model.UNKNOWN else status != cp_model.INFEASIBLE


def _under_policies(
    problem: cp_model.CpModel, model: StageModel, layers: cp_model.IntVar, most: int
) -> UnderPolicies:
    """Layers of a stage under each policy under which some layer keeps less."""
    under: UnderPolicies = {}
    for k in np.flatnonzero(model.saves(leading=model.num_leading > 0)[:, 0]).tolist():
        number = problem.new_int_var(0, most, "")
        is_used = problem.new_bool_var("")
        problem.add(number <= most * is_used)
        under[k] = number, is_used
    numbers = [number for number, _ in under.values()]
    problem.add(cp_model.LinearExpr.sum(numbers) <= layers)
    return under


def _keep_within_memory(
    problem: cp_model.CpModel,
    model: StageModel,
    stage: int,
    layers: cp_model.IntVar,
    under: UnderPolicies,
) -> None:
    """Limit what a stage holds on its device and in its host, as StageModel has both."""
    policies = model.policies
    at = np.array([[float(stage)]])
    flight = model.in_flight(at).item()
    saved = model.saved_bytes[0]
    per_layer = model.layer_static_bytes[0] + flight * saved
    held = round(per_layer) * layers + round(model.fixed_bytes(at).item())
    host = round(model.layer_host_bytes[0]) * layers
    host += round(model.fixed_host_bytes(at).item())
    # Leading layers are on the first stage; full recomputation takes them first, then the others.
    leading = problem.new_int_var(0, model.num_leading, "")
    most_leading = model.num_leading if stage == 0 else 0
    problem.add_min_equality(leading, [layers, most_leading])
    for k in map(POLICIES.index, IN_STAGE):
        if k not in under:
            continue
        number, _ = under[k]
        more = policies.saved_bytes[k, 0] - saved
        held += round(flight * more) * number
        host += round(flight * policies.host_bytes[k, 0]) * number
        taken = problem.new_int_var(0, model.num_leading, "")
        left = problem.new_int_var(0, model.num_leading, "")
        problem.add_min_equality(taken, [number, leading])
        problem.add(left == leading - taken)
        held += round(flight * policies.lead_saved_bytes[k, 0]) * taken
        leading = left
    held += round(flight * model.lead_saved_bytes[0]) * leading
    room = model.held_limit_bytes[0]
    problem.add(held <= int(room - model.transient_bytes(at, 0.0).item()))
    layer_room = int(room - model.layer_transient_bytes[0])
    for k, (_, is_used) in under.items():
        workspace = round(policies.workspace_bytes[k, 0])
        problem.add(held + workspace * is_used <= layer_room)
    fixed = round(model.step_held_bytes(0.0, at).item())
    problem.add(round(model.step_bytes[1, 0]) * layers + fixed <= int(room))
    host_room = min(model.host_limit_bytes[0], MOST_BYTES)
    problem.add(host <= int(host_room))
