"""Layers dealt out to stages by CP-SAT, over what every stage takes for every number of layers.

Booleans x_in (stage i holds n layers) with one n per stage and Σ n x_in = L, least
``m v max_i T_i + max(Σ_i T_i - max_i T_i - filled, 0) + v max_i tail_i``, the makespan times v plus
the tail.

Integers are made here and nowhere else: times in units of 2**-16 of a layer's time, rounded to
nearest (relative error below 1e-5 per stage).
"""

import time

import numpy as np
from ortools.sat.python import cp_model

from planner.cost.stage import StageModel
from planner.search.space.interleaving import full_stage_layers, has_equal_chunks
from planner.search.stages.stage_table import StageTable
from planner.units import Array

SEED = 0
# Of one stage, by column of the table.
Choice = dict[int, cp_model.IntVar]


def deterministic_solver() -> cp_model.CpSolver:
    """A solver that any machine has the same answer of, and that an interrupt ends."""
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = SEED
    solver.parameters.max_deterministic_time = 30.0  # In units of work
    solver.parameters.catch_sigint_signal = False
    return solver


def solve_cells(
    model: StageModel, table: StageTable, deadline: float = np.inf
) -> tuple[Array | None, bool]:
    """Columns of the table by CP-SAT, and whether that is proved; (None, True): infeasible."""
    problem, chosen = cp_model.CpModel(), list[Choice]()
    # One boolean per stage and possible number of layers.
    for number, seconds in enumerate(table.seconds):
        columns = np.flatnonzero(np.isfinite(seconds)).tolist()
        chosen.append({c: problem.new_bool_var(f"x{number}_{c}") for c in columns})
        problem.add_exactly_one(chosen[-1].values())
    layers = [
        cp_model.LinearExpr.weighted_sum(
            list(stage.values()), [int(table.layers[column]) for column in stage]
        )
        for stage in chosen
    ]
    problem.add(cp_model.LinearExpr.sum(layers) == model.num_layers)
    may_differ = ~has_equal_chunks(model.strategy)
    if (may_differ & (model.strategy.vpp > 1))[0]:
        # One stage has full chunks; what else fits_chunks asks is in the table's range.
        full = full_stage_layers(model.num_layers, model.strategy.pp, model.strategy.vpp)[0]
        column = np.flatnonzero(table.layers == full).tolist()
        problem.add_bool_or([stage[c] for stage in chosen for c in column if c in stage])
    _add_objective(problem, model, table, chosen)
    solver = deterministic_solver()
    if np.isfinite(deadline):
        solver.parameters.max_time_in_seconds = max(deadline - time.monotonic(), 0.0)
    status = solver.solve(problem)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None, status == cp_model.INFEASIBLE
    found = [next(c for c, x in stage.items() if solver.value(x)) for stage in chosen]
    return np.array(found), status == cp_model.OPTIMAL


def _add_objective(
    problem: cp_model.CpModel, model: StageModel, table: StageTable, chosen: list[Choice]
) -> None:
    step_s = float(model.layer_s[0]) / 2**16
    m = int(model.strategy.num_micro_batches[0])
    v = int(model.strategy.vpp[0])
    times: list[cp_model.LinearExpr] = []
    tails: list[cp_model.LinearExpr] = []
    finite = np.isfinite(table.seconds)
    in_steps = np.rint(np.where(finite, table.seconds, 0.0) / step_s).astype(int)
    tail_steps = np.rint(np.maximum(table.tail_s, 0.0) / step_s).astype(int)
    for i, stage in enumerate(chosen):
        columns, variables = list(stage), list(stage.values())
        times.append(cp_model.LinearExpr.weighted_sum(variables, in_steps[i, columns].tolist()))
        tails.append(cp_model.LinearExpr.weighted_sum(variables, tail_steps[i, columns].tolist()))
    slowest = problem.new_int_var(0, int(in_steps.max()), "slowest")
    tail = problem.new_int_var(0, int(tail_steps.max()), "tail")
    for seconds, one in zip(times, tails, strict=True):
        problem.add(slowest >= seconds)
        problem.add(tail >= one)
    filled = round(float(model.bubble_filled_s[0]) / step_s)
    work = cp_model.LinearExpr.sum(times)
    bubble = work - slowest
    if filled:
        bubble = problem.new_int_var(0, int(in_steps.max(axis=1).sum()), "bubble")
        problem.add(bubble >= work - slowest - filled)
    problem.minimize(m * v * slowest + bubble + v * tail)
