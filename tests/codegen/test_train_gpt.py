"""The example that trains a small GPT: by its plan as alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import torch

from partita.codegen.plan.plan import Plan
from partita.codegen.verification.threads import run_threads
from partita.model.capture.capture import capture
from partita.model.capture.load import import_file

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_gpt.py"


def test_losses_are_those_of_the_module_alone(force: Callable[..., Plan], tmp_path: Path) -> None:
    example = import_file(EXAMPLE)
    torch.manual_seed(0)
    plan = force(capture(*example.gpt(), batch=8), (2, 2), random.Random(0))
    plan.emit(tmp_path / "program.py")
    program, data, module = example.program_in(tmp_path), example.samples()[:40], example.GPT().double()
    state = {name: value.clone() for name, value in module.state_dict().items()}

    def train(_: int) -> tuple[object, list[float]]:
        built = program.build(state)
        return built[0], example.by_plan(program, built, data, 3)

    meshes, losses = zip(*run_threads(train, plan.ranks, timeout=60), strict=True)
    expected = example.alone(program, meshes[0], module, data, 3)
    assert torch.allclose(torch.tensor(losses[0]), torch.tensor(expected), rtol=1e-9, atol=1e-9)
    assert len({*expected}) == 3
