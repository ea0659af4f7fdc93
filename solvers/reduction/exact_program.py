"""CP-SAT and Z3 on the Boolean states of a reduction: independent checks of the cheapest program."""

import math
import time
from dataclasses import dataclass

from ...formulation.reduction.encoding import UNITS, Clauses
from ...formulation.reduction.program import ReductionProgram
from ..backends.z3_thread import checked
from ..protocol import Status


@dataclass(frozen=True, slots=True)
class ProgramAnswer:
    """Status, the best program and its ns (None: none found), and a proved lower bound in ns.

    Costs are rounded to whole units: both times are exact to about 1e-8, relative.
    """

    status: Status
    program: ReductionProgram | None
    ns: float | None
    bound: float


def solve_by_cpsat(encoded: Clauses, seconds: float = math.inf) -> ProgramAnswer:
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
        return ProgramAnswer(known.get(status, Status.UNKNOWN), None, None, bound)
    program = encoded.program(lambda x: solver.boolean_value(literals[x]))
    return ProgramAnswer(known[status], program, solver.objective_value * encoded.ns_per_unit, bound)


def solve_by_z3(encoded: Clauses, seconds: float = math.inf) -> ProgramAnswer:
    """The cheapest program: tighten the cost limit until it is infeasible or the time is up."""
    import z3

    until = time.perf_counter() + seconds
    variables = range(1, encoded.variables + 1)
    solver = z3.Solver(ctx=z3.Context())
    # Parsing text is much faster in Z3 than building clauses one by one.
    solver.from_string("\n".join((*(f"(declare-const x{i} Bool)" for i in variables), *map(_smtlib, encoded.clauses))))
    literals = {i: z3.Bool(f"x{i}", solver.ctx) for i in variables}
    for choice in encoded.choices:
        solver.add(z3.PbEq([(literals[x], 1) for x in choice], 1))
    costs = [(literals[x], cost) for x, cost in encoded.costs.items()]
    solver.add(z3.PbLe(costs, UNITS))  # the cost of the one-step program
    program: ReductionProgram | None = None
    paid = 0
    while True:
        found = checked(solver, until)
        if found != "sat":
            break
        model = solver.model()
        true = {x for choice in encoded.choices for x in choice if z3.is_true(model[literals[x]])}
        program = encoded.program(true.__contains__)
        paid = sum(cost for x, cost in encoded.costs.items() if x in true)
        solver.add(z3.PbLe(costs, paid - 1))
    proved = found == "unsat"
    if program is None:
        return ProgramAnswer(Status.INFEASIBLE if proved else Status.UNKNOWN, None, None, 0.0)
    ns = paid * encoded.ns_per_unit
    return ProgramAnswer(Status.OPTIMAL if proved else Status.FEASIBLE, program, ns, ns if proved else 0.0)


def _smtlib(clause: tuple[int, ...]) -> str:
    return f"(assert (or {' '.join(f'x{x}' if x > 0 else f'(not x{-x})' for x in clause)}))"
