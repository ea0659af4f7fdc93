"""The formula of a pipeline as a bound of GPipe's step slot by slot, and plans whose bound is nearly their step."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest

from partita.bench.conversions import CASES, planned
from partita.codegen.plan.spacetime_plan import space_time
from partita.codegen.pricing.plan_price import plan_price
from partita.formulation.pipeline.configuration import Configuration
from partita.formulation.pipeline.evaluate import starts_ns
from partita.formulation.pipeline.orders import gpipe
from partita.formulation.pipeline.problem import Stage, pipeline
from partita.formulation.pipeline.schedule import GPIPE


def drawn(rng: random.Random, size: int) -> list[Stage]:
    """Stages that are equal, nearly equal, or not, with messages of some length."""
    spread, share, far = rng.choice([0, 50, 1000]), rng.choice([0, 100, 900]), rng.choice([0, 20, 300])
    found = []
    for number in range(size):
        whole = 1000 + rng.randint(0, spread)
        forward = rng.randint(max(1, whole // 3 - share), min(whole - 1, whole // 3 + share))
        ahead, back = (rng.randint(0, far) if where else 0 for where in (number < size - 1, number > 0))
        found.append(Stage(forward, whole - forward, forward_message_ns=ahead, backward_message_ns=back))
    return found


def test_no_step_is_shorter() -> None:
    """With the update of the first stage, which ends last; nearly equal stages take little more."""
    rng, equal = random.Random(1), 0
    for _ in range(300):
        stages, micros, update = drawn(rng, rng.randint(2, 6)), rng.randint(1, 16), rng.choice([0, 700, 9000])
        problem = pipeline(stages, micros)
        starts = starts_ns(problem, gpipe(len(stages), micros))
        step = max(start + task.duration_ns for start, task in zip(starts, problem.tasks, strict=True)) + update
        times = [micros * (stage.forward_ns + stage.backward_ns) for stage in stages]
        messages = sum(s.forward_message_ns + after.backward_message_ns for s, after in pairwise(stages))
        configuration = Configuration((len(stages),), ((1,),), micros, GPIPE)
        bound = configuration.step_ns([times[0] + update, *times[1:]]) + messages
        assert bound <= step, (stages, micros, update)
        equal += bound == step
    assert equal > 30


@pytest.mark.parametrize("model", ["gpt2", "llama-7b"])
def test_plans_take_little_more_than_their_bound_and_as_long_converted(model: str) -> None:
    plan = planned(next(case for case in CASES if case.name == f"{model} GPipe"))
    step = plan_price(plan).objective_ns
    assert 0.995 * step < plan.report["bound_ns"] <= step == plan.report["objective_ns"]
    made = space_time(plan.space_time_graph(), plan.machine, dtype=plan.dtype, optimizer=plan.optimizer)
    assert np.isclose(made.prediction.step_ns, step, rtol=3e-4)
