"""Orders of the mesh axes, each of which is glanced at before a first plan is sought."""

from __future__ import annotations

import pytest

from partita.bench.cases import captured, plan_of_one_stage
from partita.bench.plan import AMPLE, with_available
from partita.formulation.search_space import SearchSpace
from partita.model.machine.machine import Machine
from partita.solvers.budget import Budget
from partita.solvers.search import configuration_search, search
from partita.solvers.search.advance import Task
from partita.solvers.search.state import Level, Proved, Stages


def searched(monkeypatch: pytest.MonkeyPatch, capacity: int, glances_find: bool) -> tuple[list[Task], list[int]]:
    """GPT-2's small twin on a mesh of three orders of axes: the tasks of the search, and their bounds."""
    machine = Machine.load("dgx-h100", nodes=4)
    graph, training = captured("gpt2", machine, small=True)
    space = SearchSpace(mesh=(8, 4), micro_batches=2, stages=1)
    asked, bounds = list[Task](), list[int]()
    advance = search.advance

    def noted(task: Task) -> tuple[Proved, Stages | None]:
        state, stages = advance(task)
        asked.append(task)
        bounds.append(state.bound)
        return state, stages if glances_find or not task.efforts[0].rough else None

    monkeypatch.setattr(configuration_search, "GLANCED_AXES", 2)
    monkeypatch.setattr(search, "advance", noted)
    plan = plan_of_one_stage(graph, with_available(machine, capacity), training, space, Budget(gap=0.01))
    assert plan.report["gap"] <= 0.01 and plan.report["memory_bytes"] <= capacity
    return asked, bounds


@pytest.mark.parametrize("scarce", [False, True])
def test_every_order_of_axes_is_glanced_at_before_a_first_plan(scarce: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where memory is scarce the order of least bound is solved first."""
    asked, bounds = searched(monkeypatch, 1_080_000 if scarce else AMPLE, glances_find=True)
    glances = [task.efforts[0] for task in asked[:3]]
    assert len({task.configuration for task in asked[:3]}) == 3
    assert all(effort.rough and effort.level is Level.RELAXED for effort in glances)
    if scarce:
        best = min(range(3), key=lambda k: bounds[k])
        assert asked[3].configuration == asked[best].configuration and asked[3].efforts[0].level is Level.PRICED
    else:
        assert len(asked) == 3


def test_the_order_that_looked_best_is_solved_without_memory_if_glances_find_no_solution(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As of networks too wide for elimination: it may be a plan, and recomputation makes networks larger."""
    asked, bounds = searched(monkeypatch, AMPLE, glances_find=False)
    best = asked[bounds[:3].index(min(bounds[:3]))]
    assert asked[3].configuration == best.configuration
    assert [effort.level for effort in asked[3].efforts] == [Level.RELAXED, Level.PRICED]
