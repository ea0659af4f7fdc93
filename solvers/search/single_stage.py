"""A configuration of one stage: one network of the whole graph, without cuts to choose.

The network is solved first without its memory limit. That bound also holds for every multiple of the number of
micro-batches, since no table entry falls when micro-batches get smaller (k·⌈x/k⌉ ≥ ⌈x⌉ for sizes and nanoseconds;
latencies and kernel launches are paid k times). If the solution fits the memory, it is a plan. Otherwise the network is
solved with the limit; only then are segments recomputed, which never pays if memory is plentiful.
"""

from ...formulation.encoding.overlap import overlapping_layers
from ...formulation.network.network import INFINITE, Network, evaluate
from ...formulation.strategies.tensor_classes import classes
from ...model.errors import PartitaError
from ..elimination.transient_memory import memory_has_price
from ..protocol import INTERRUPTED, STOPPED, Limits, Solution, Status
from .memory_limits import least_use, without_limit
from .part_bounds import PartAnswer
from .part_networks import PartNetworks
from .planning_problem import PlanningProblem
from .state import Effort, Level, Proved, Stages


def has_windows(problem: PlanningProblem) -> bool:
    """True if networks of the whole graph have windows, which take a while to price."""
    return len(overlapping_layers(problem.pcg, classes(problem.pcg), problem.space)) > 1


def solve_single_stage(parts: PartNetworks, state: Proved, target: int, effort: Effort) -> Stages | None:
    """Raise the bound of the configuration with this effort; the plan found, if any.

    `effort.cutoff`: the cost that a plan must beat. An interrupt or the time limit keeps what was found.
    """
    if state.bound >= target:
        return None
    relaxed, end = effort.level is Level.RELAXED, parts.pipeline.count - 1
    in_flight = 0 if relaxed else parts.configuration.in_flight(0)
    try:
        encoding = parts.encoding(0, end, in_flight)
    except PartitaError as refusal:  # a fixed strategy, or the batch, cannot be split so finely
        state.bound, state.refusal = INFINITE, str(refusal)
        return None
    parts.count_options(encoding.network)
    if not (relaxed or _has_room(parts, state, encoding.network)):
        state.bound = INFINITE
        return None
    bounded = effort.level is Level.BOUNDED
    rough = effort.rough or bounded
    quick = rough or effort.level is Level.PRICED
    known = max(effort.seconds, 0.0), effort.cutoff, effort.progress, effort.gap
    enough = target if effort.level is Level.CLOSED else INFINITE
    limits = Limits(*known, quick=quick, rough=rough, prices=effort.prices, enough=enough)
    if bounded and target < INFINITE:  # a bound of `target` suffices
        limits = limits.reaching(target)
    network = without_limit(encoding.network) if relaxed else encoding.network
    solution = parts.answered(network, limits)
    state.solved += 1
    state.interrupted |= solution.words == INTERRUPTED
    bound = solution.bound
    if solution.status is Status.INFEASIBLE and limits.cutoff is not None:  # nothing below the cutoff
        bound = limits.ceiling(None)
    state.bound = max(state.bound, bound)
    if solution.proof is not None and solution.proof.parts:
        state.proof = solution.proof
    if relaxed:
        state.relaxed = max(state.relaxed, bound)  # `state.bound` may count the limit
    if any(solution.prices):
        state.prices_of[relaxed] = solution.prices
        state.scarce |= not relaxed and memory_has_price(network, solution.prices)
    fits = solution.assignment is not None and evaluate(encoding.network, solution.assignment).feasible
    problem = parts.pipeline.problem
    same = relaxed and fits and problem.fastest == problem.space.modes  # as the network within the limit of memory
    if same and not rough and _gave_up(solution, limits):
        state.exhausted = min((x for x in (effort.cutoff, solution.objective) if x is not None), default=None)
    state.lacks_room |= effort.rough and solution.assignment is not None and not fits
    if solution.assignment is None or solution.objective is None or not fits:
        return None
    state.has_room |= relaxed
    answer = PartAnswer(bound, solution.objective, in_flight, assignment=solution.assignment)
    return Stages(solution.objective, (0, end), (answer,), solution.source, solution.proof)


def _gave_up(solution: Solution, limits: Limits) -> bool:
    """True if the solver ended by itself above the requested gap, not at a time limit or an interrupt."""
    stopped = solution.words == INTERRUPTED or STOPPED in solution.words
    return not stopped and solution.bound < limits.ceiling(solution.objective)


def _has_room(parts: PartNetworks, state: Proved, network: Network) -> bool:
    """True if some assignment may fit the memory; if one did with fewer micro-batches, one does."""
    if not state.has_room:
        missing = parts.timed(lambda: least_use(network)) - network.capacities[0]
        if missing > 0:
            state.missing = missing
        state.has_room = missing <= 0
    return state.has_room
