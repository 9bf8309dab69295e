"""The stage problem in CP-SAT: layers per stage, and layers per policy on every stage.

For one strategy, choose integers n_i (layers), c_i (selectively recomputed) and f_i (recomputed
in full) with Σ n_i = L, c_i + f_i <= n_i, every stage within HBM and host memory, and least
``m v max_i T_i + max(Σ_i T_i - max_i T_i - filled, 0) + v max_i tail_i`` (the makespan times v,
plus the tail).

Integers are made here and nowhere else: times in units of 2**-16 of a layer's time, rounded to
nearest (relative error below 1e-5 per stage); memory in bytes, usage rounded up and limits
down.
"""

import math
from dataclasses import dataclass

import numpy as np
from ortools.sat.python import cp_model

from planner.cost.stage import (
    StageModel,
    all_stages,
    fixed_time_s,
    in_flight_matrix,
    iteration_s,
)
from planner.search.bounds import Limits, leading_relief_bytes, stage_limits
from planner.search.interleaving import interleaved_layers
from planner.units import Array

TIME_STEPS_PER_LAYER = 2**16
SEED = 0


@dataclass(frozen=True, kw_only=True)
class Split:
    """Layers and policies per stage, with the iteration time they give."""

    layers: Array
    selective: Array
    full: Array
    iteration_s: float
    is_optimal: bool


@dataclass(frozen=True, kw_only=True)
class _Variables:
    layers: list[cp_model.IntVar]
    selective: list[cp_model.IntVar]
    full: list[cp_model.IntVar]
    any_selective: list[cp_model.IntVar]
    any_full: list[cp_model.IntVar]


def _variables(
    problem: cp_model.CpModel, model: StageModel, num_stages: int, num_layers: int
) -> _Variables:
    high = num_layers - num_stages + 1
    bounds = [(1, high)] * num_stages
    if int(model.strategy.vpp[0]) > 1:
        fixed = interleaved_layers(num_layers, num_stages, model.strategy.vpp)[0]
        bounds = [(int(number), int(number)) for number in fixed]
    has_selective = bool(model.saved_bytes[0] > model.selective_saved_bytes[0])
    most_selective = high if has_selective else 0
    layers = [problem.new_int_var(*bounds[i], f"n{i}") for i in range(num_stages)]
    selective = [problem.new_int_var(0, most_selective, f"c{i}") for i in range(num_stages)]
    full = [problem.new_int_var(0, high, f"f{i}") for i in range(num_stages)]
    any_selective = [problem.new_bool_var(f"s{i}") for i in range(num_stages)]
    any_full = [problem.new_bool_var(f"r{i}") for i in range(num_stages)]
    problem.add(sum(layers) == num_layers)
    for i in range(num_stages):
        problem.add(selective[i] + full[i] <= layers[i])
        problem.add(selective[i] <= high * any_selective[i])
        problem.add(full[i] <= high * any_full[i])
    return _Variables(
        layers=layers,
        selective=selective,
        full=full,
        any_selective=any_selective,
        any_full=any_full,
    )


def _add_memory(
    problem: cp_model.CpModel, model: StageModel, limits: Limits, variables: _Variables
) -> None:
    flight = in_flight_matrix(model, all_stages(len(variables.layers)))[0]
    for i, layers in enumerate(variables.layers):
        per_layer = limits.layer_bytes[0, i]
        by_selective = flight[i] * (model.saved_bytes[0] - model.selective_saved_bytes[0])
        by_full = flight[i] * (model.saved_bytes[0] - model.full_saved_bytes[0])
        used = (
            math.ceil(per_layer) * layers
            - math.floor(by_selective) * variables.selective[i]
            - math.floor(by_full) * variables.full[i]
        )
        if i == 0 and model.num_leading:
            used = used + _leading_bytes(problem, model, float(flight[0]), variables)
        room = limits.room_bytes[0, i]
        for less_room, is_used in (
            (limits.selective_room_bytes[0, i], variables.any_selective[i]),
            (limits.full_room_bytes[0, i], variables.any_full[i]),
        ):
            workspace = math.ceil(max(room - less_room, 0.0))
            problem.add(used + workspace * is_used <= math.floor(room))
        if np.isfinite(limits.max_host_layers[0, i]):
            problem.add(layers <= math.floor(limits.max_host_layers[0, i] + 1e-9))


def _leading_bytes(
    problem: cp_model.CpModel, model: StageModel, flight: float, variables: _Variables
) -> cp_model.LinearExpr:
    """Bytes by which the first stage's leading layers differ, by policy, less the bound's relief.

    Requires all leading layers on the first stage.
    """
    leading = model.num_leading
    problem.add(variables.layers[0] >= leading)
    by_full = problem.new_int_var(0, leading, "leading_full")
    by_selective = problem.new_int_var(0, leading, "leading_selective")
    problem.add_min_equality(by_full, [variables.full[0], leading])
    problem.add_min_equality(by_selective, [variables.selective[0], leading - by_full])
    kept = math.ceil(flight * model.lead_saved_bytes[0])
    selective = math.ceil(flight * model.lead_selective_saved_bytes[0])
    relief = math.ceil(flight * leading_relief_bytes(model)[0])
    total: cp_model.LinearExpr = (
        kept * (leading - by_full - by_selective) + selective * by_selective + relief
    )
    return total


def _add_objective(problem: cp_model.CpModel, model: StageModel, variables: _Variables) -> None:
    num_stages = len(variables.layers)
    step_s = float(model.layer_s[0]) / TIME_STEPS_PER_LAYER
    fixed = fixed_time_s(model, all_stages(num_stages))[0]

    def steps(seconds: float) -> int:
        return round(seconds / step_s)

    times = [
        TIME_STEPS_PER_LAYER * variables.layers[i]
        + steps(model.selective_s[0]) * variables.selective[i]
        + steps(model.full_s[0]) * variables.full[i]
        + steps(fixed[i])
        for i in range(num_stages)
    ]
    horizon = (
        2
        * steps(
            float(
                (model.layer_s[0] + model.full_s[0])
                * sum(v.proto.domain[1] for v in variables.layers)
            )
            + float(fixed.sum())
        )
        + 2
    )
    slowest = problem.new_int_var(0, horizon, "slowest")
    for time in times:
        problem.add(slowest >= time)
    tail_limit = 2 + steps(
        float(
            np.abs(model.tail_layer_s[:, 0]).max() * variables.layers[0].proto.domain[1] * 2
            + np.abs(model.tail_first_s[:, 0]).max()
            + np.abs(model.tail_last_s[:, 0]).max()
        )
    )
    tail = problem.new_int_var(0, max(tail_limit, 2), "tail")
    for piece in range(2):
        for i in range(num_stages):
            constant = (i == 0) * model.tail_first_s[piece, 0]
            constant += (i == int(model.strategy.head_stage[0])) * model.tail_last_s[piece, 0]
            problem.add(
                tail >= steps(model.tail_layer_s[piece, 0]) * variables.layers[i] + steps(constant)
            )
    m, v = int(model.strategy.num_micro_batches[0]), int(model.strategy.vpp[0])
    filled = steps(float(model.bubble_filled_s[0]))
    bubble = sum(times) - slowest
    if filled:
        bubble = problem.new_int_var(0, num_stages * horizon, "bubble")
        problem.add(bubble >= sum(times) - slowest - filled)
    problem.minimize(m * v * slowest + bubble + v * tail)


def _hint(problem: cp_model.CpModel, variables: _Variables, hint: Split) -> None:
    for i in range(len(variables.layers)):
        problem.add_hint(variables.layers[i], int(hint.layers[i]))
        problem.add_hint(variables.selective[i], int(hint.selective[i]))
        problem.add_hint(variables.full[i], int(hint.full[i]))


def solve_split(
    model: StageModel,
    num_layers: int,
    *,
    hint: Split | None = None,
    deterministic_limit: float = 30.0,
) -> Split | None:
    """Return the optimal split of the one strategy in ``model``, or None when nothing fits.

    Deterministic: one worker, fixed seed, a limit in the solver's own units of work rather than
    seconds. ``is_optimal`` is False when the limit struck first.
    """
    assert len(model) == 1
    num_stages = int(model.strategy.pp[0])
    problem = cp_model.CpModel()
    variables = _variables(problem, model, num_stages, num_layers)
    limits = stage_limits(model, num_stages)
    _add_memory(problem, model, limits, variables)
    _add_objective(problem, model, variables)
    if hint is not None:
        _hint(problem, variables, hint)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = SEED
    solver.parameters.max_deterministic_time = deterministic_limit
    solver.parameters.catch_sigint_signal = False
    status = solver.solve(problem)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None

    def read(values: list[cp_model.IntVar]) -> Array:
        return np.array([[float(solver.value(value)) for value in values]])

    layers, selective, full = (
        read(variables.layers),
        read(variables.selective),
        read(variables.full),
    )
    return Split(
        layers=layers[0],
        selective=selective[0],
        full=full[0],
        iteration_s=float(iteration_s(model, layers, selective, full)[0]),
        is_optimal=status == cp_model.OPTIMAL,
    )
