"""What is trained: the output that the user meant, or a refusal that says what to write."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from partita.codegen.planner.planner import optimize
from partita.codegen.verification.verify import verify
from partita.model.capture.capture import capture
from partita.model.errors import PartitaError
from partita.model.machine.machine import Machine

INPUTS = torch.zeros(6, 4), torch.zeros(6, dtype=torch.int64)


class Scores(nn.Module):
    """Returns what `give` makes of scores, their mean square and their cross entropy."""

    def __init__(self, give: Callable[..., Any]) -> None:
        super().__init__()
        self.linear, self.give, self.temperature = nn.Linear(4, 5), give, nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor, labels: Tensor) -> Any:
        scores = self.linear(x)
        return self.give(scores, scores.square().mean(), F.cross_entropy(scores, labels), self.temperature)


@dataclass
class Output:
    scores: Tensor
    loss: Tensor | None = None


def test_outputs_that_the_loss_does_not_need_are_left_out() -> None:
    module = Scores(lambda scores, *losses: {"loss": losses[1], "seen": scores.unique(), "at": scores.nonzero()})
    assert {"cross_entropy"} <= {node.op for node in capture(module, INPUTS).nodes}


class Pair(NamedTuple):
    aux: Tensor
    loss: Tensor


class ModelOutput(OrderedDict[str, Any]):
    """As in transformers: a dict without what is None, whose items are attributes too."""

    def __init__(self, **given: Any) -> None:
        super().__init__({name: value for name, value in given.items() if value is not None})
        vars(self).update(given)


WANTED = capture(Scores(lambda s, aux, loss, t: loss), INPUTS)
"""The graph whose loss is the cross entropy."""

FOUND: dict[str, Callable[..., Any]] = {
    "nanoGPT": lambda s, aux, loss, t: (s, loss),
    "one element": lambda s, aux, loss, t: (s, loss.view(1)),
    "hidden states": lambda s, aux, loss, t: (aux.expand(3), s, loss),
    "dict": lambda s, aux, loss, t: {"aux": aux, "loss": loss, "scores": s},
    "nested": lambda s, aux, loss, t: (s, {"aux": aux, "loss": loss}),
    "dataclass": lambda s, aux, loss, t: Output(s, loss),
    "named tuple": lambda s, aux, loss, t: Pair(aux, loss),
    "ModelOutput": lambda s, aux, loss, t: ModelOutput(loss=loss, logits=s, aux_loss=aux),
    "counts beside": lambda s, aux, loss, t: ((s > 0).sum(), loss),
}


@pytest.mark.parametrize("name", FOUND)
def test_the_loss_is_found(name: str) -> None:
    graph = capture(Scores(FOUND[name]), INPUTS)
    assert graph.nodes[graph.loss].op in ("cross_entropy", "view") and not graph.of("projection")
    assert [n for n in graph.nodes if n.op != "view"] == list(WANTED.nodes)


def test_the_users_word_counts() -> None:
    assert capture(Scores(lambda s, aux, loss, t: (aux, s, loss)), INPUTS, loss=lambda out: out[2]) == WANTED
    half = capture(Scores(lambda s, aux, loss, t: {"loss": aux, "other": loss}), INPUTS, loss=lambda out: out["other"])
    assert half == WANTED


@pytest.mark.parametrize(
    ("give", "loss", "words"),
    [
        (lambda s, aux, loss, t: s, None, r"no scalar .* out of shape \(6, 5\).*loss=lambda out: out.mean\(\)"),
        (lambda s, aux, loss, t: (aux, s, loss), None, r"out\[0\], out\[2\].*give loss=lambda out: out\[2\] .*factory"),
        (lambda s, aux, loss, t: [{"loss": aux}, {"loss": loss}], None, r"lambda out: out\[1\]\['loss'\]"),
        (lambda s, aux, loss, t: {"loss": s.mean(0)}, None, r"\(5,\), not a scalar: .* out\['loss'\].mean\(\)"),
        (lambda s, aux, loss, t: Output(s), None, "its loss is None: are labels missing"),
        (lambda s, aux, loss, t: ModelOutput(loss=None, logits=s), None, "its loss is None"),
        (lambda s, aux, loss, t: s.argmax(-1), None, "no floating tensor"),
        (lambda s, aux, loss, t: (s, t), None, r"out\[1\].* depends on no input"),
        (lambda s, aux, loss, t: (s, loss), lambda out: out[2], r"loss fails .*IndexError.* out\[0\] of shape"),
        (lambda s, aux, loss, t: (s, loss), lambda out: out[0], r"float32 of shape \(6, 5\) .*not a floating scalar"),
        (lambda s, aux, loss, t: (s, loss), lambda out: 3, "loss gives int"),
        (lambda s, aux, loss, t: (s, loss), "mean", "loss='mean': a function"),
        (lambda s, aux, loss, t: s.argmax(-1), "projection", "no floating tensor, so there is nothing"),
    ],
)
def test_refusals_say_what_to_write(give: Callable[..., Any], loss: Any, words: str) -> None:
    with pytest.raises(PartitaError, match=words):
        capture(Scores(give), INPUTS, loss=loss)


def test_verify_says_what_it_compared(tmp_path: Path) -> None:
    """The same loss for program and module, also where the plan comes from a file."""
    module, machine, asked = Scores(lambda s, aux, loss, t: (aux, s, loss)), Machine.adhoc((2,)), {"cache": "none"}
    plan = optimize(module, INPUTS, machine, loss=lambda out: out[2], **asked)
    verdict = plan.verify()
    assert verdict["ok"] and verdict["objective"] == "the given function of the output"
    plan.save(tmp_path)
    given: dict[str, Any] = {"module": module, "inputs": INPUTS, "steps": 1}
    with pytest.raises(PartitaError, match="give verify its loss"):
        verify(tmp_path, **given)
    assert verify(tmp_path, **given, loss=lambda out: out[2])["ok"]
    assert not verify(tmp_path, **given, loss=lambda out: out[0])["ok"]
    projected = optimize(module, INPUTS, machine, loss="projection", **asked)
    verdict = projected.verify()
    assert verdict["ok"] and verdict["objective"].startswith("a random projection of out[0], out[1], out[2]")
    assert projected.summary()["loss"] == "projection" and plan.summary()["loss"] == "given"
    projected.save(tmp_path)
    assert "projection" in verify(tmp_path, **given)["objective"]
    with pytest.raises(PartitaError, match="made with loss='projection'"):
        verify(tmp_path, **given, loss=lambda out: out[2])


FACTORY = """
import torch
from torch import nn

class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        y = self.linear(x)
        return y.abs().mean(), y.square().mean()

def both():
    return Both(), (torch.zeros(4, 4),)

def second():
    return *both(), lambda out: out[1]

def wrong():
    return *both(), "second"
"""


def test_a_factory_says_which(tmp_path: Path) -> None:
    """On the command line; `verify` in a new process asks the factory again."""
    from partita.codegen.planner.planner import plan
    from partita.formulation.search_space import SearchSpace
    from partita.model.machine.machine_choice import MachineChoice
    from partita.solvers.budget import Budget

    (tmp_path / "mine.py").write_text(FACTORY)

    def made(name: str, **given: Any) -> Any:
        choice = MachineChoice(hierarchy=(2,))
        return plan(f"{tmp_path}/mine.py:{name}", choice, {"batch": 4, **given}, SearchSpace(), Budget(workers=1))

    with pytest.raises(PartitaError, match=r"several scalars \(out\[0\], out\[1\]\)"):
        made("both")
    with pytest.raises(PartitaError, match="must return its loss as a function"):
        made("wrong")
    made("second").save(tmp_path / "plan")
    verdict = verify(tmp_path / "plan", steps=1)
    assert verdict["ok"] and verdict["objective"] == "the given function of the output"
    made("both", loss="projection").save(tmp_path / "plan")
    assert "projection" in verify(tmp_path / "plan", steps=1)["objective"]
    with pytest.raises(PartitaError, match="--loss 'mean': choose from projection"):
        made("both", loss="mean")


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop = nn.BatchNorm1d(4), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.norm(x)).square().mean()


def test_the_mode_is_the_modules_own(tmp_path: Path) -> None:
    """From Python and from a file alike; verify refuses another one."""
    from partita.codegen.planner.planner import plan
    from partita.formulation.search_space import SearchSpace
    from partita.model.machine.machine_choice import MachineChoice
    from partita.solvers.budget import Budget

    frozen = Dropping()
    frozen.norm.eval()
    machine, inputs = Machine.adhoc((2,)), (torch.zeros(6, 4),)
    for mode, module in {"train": Dropping(), "eval": Dropping().eval(), "mixed": frozen}.items():
        made = optimize(module, inputs, machine, cache="none")
        assert made.summary()["mode"] == made.model["mode"] == mode and made.verify()["ok"]
        assert len(made.graph.of("dropout")) == (mode != "eval")
        assert ("\n    mode  " in str(made)) == ("\n    mode  " in made.emit()) == (mode != "train")
        with pytest.raises(PartitaError, match=f"made of the module in mode '{mode}'"):
            verify(made, module=Dropping().eval() if mode == "train" else Dropping(), inputs=inputs)
    (tmp_path / "mine.py").write_text(MODES)
    for mode, name in {"train": "made", "eval": "pretrained"}.items():
        reference = f"{tmp_path}/mine.py:{name}"
        planned = plan(reference, MachineChoice(hierarchy=(2,)), {"batch": 4}, SearchSpace(), Budget(workers=1))
        assert planned.model["mode"] == mode and planned.verify()["ok"]


MODES = """
import torch
from torch import nn

class Net(nn.Sequential):
    def forward(self, x):
        return super().forward(x).square().mean()

def made():
    return Net(nn.Linear(4, 4), nn.Dropout(0.5)), (torch.zeros(4, 4),)

def pretrained():
    module, inputs = made()
    return module.eval(), inputs
"""
