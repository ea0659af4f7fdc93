"""Z3 on the boolean states of a reduction."""

from __future__ import annotations

import math
import time

from ...formulation.reduction.encoding import UNITS, Clauses
from ...formulation.reduction.program import ReductionProgram
from ..backends.z3_thread import checked
from ..protocol import Status
from .answer import Answer


def solve(encoded: Clauses, seconds: float = math.inf) -> Answer:
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
        return Answer(Status.INFEASIBLE if proved else Status.UNKNOWN, None, None, 0.0)
    ns = paid * encoded.ns_per_unit
    return Answer(Status.OPTIMAL if proved else Status.FEASIBLE, program, ns, ns if proved else 0.0)


def _smtlib(clause: tuple[int, ...]) -> str:
    return f"(assert (or {' '.join(f'x{x}' if x > 0 else f'(not x{-x})' for x in clause)}))"
