"""CP-SAT on the boolean states of a reduction."""

from __future__ import annotations

import math

from ...formulation.reduction.encoding import Clauses
from ..protocol import Status
from .answer import Answer


def solve(encoded: Clauses, seconds: float = math.inf) -> Answer:
    """The cheapest program, or the best found in time, with a proved bound."""
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    variables = [model.new_bool_var(f"x{i}") for i in range(encoded.variables)]
    literals = dict(enumerate(variables, 1)) | {-i: x.negated() for i, x in enumerate(variables, 1)}
    for clause in encoded.clauses:
        model.add_bool_or([literals[x] for x in clause])
    for choice in encoded.choices:
        model.add_exactly_one(literals[x] for x in choice)
    model.minimize(sum(cost * literals[x] for x, cost in encoded.costs.items()))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1  # the same answer every time
    solver.parameters.random_seed = 1
    solver.parameters.max_time_in_seconds = min(seconds, 1e6)
    status = solver.solve(model)
    known = {
        cp_model.OPTIMAL: Status.OPTIMAL,
        cp_model.FEASIBLE: Status.FEASIBLE,
        cp_model.INFEASIBLE: Status.INFEASIBLE,
    }
    bound = max(solver.best_objective_bound, 0.0) * encoded.ns_per_unit
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Answer(known.get(status, Status.UNKNOWN), None, None, bound)
    program = encoded.program(lambda x: solver.boolean_value(literals[x]))
    return Answer(known[status], program, solver.objective_value * encoded.ns_per_unit, bound)
