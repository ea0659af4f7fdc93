"""Every operator that PyTorch tests itself with, as a module of its own: captured, planned for two ranks, verified.

`op_db` of torch.testing has sample arguments for each operator. Tensors that may have a gradient become parameters,
with these values, others buffers; so the planner may split whatever it likes, and does, since devices are slow and the
link is fast. The loss is a projection of all results. As `verify` does, the program's loss, gradients and weights are
compared with the module's, in float64. `verified` counts samples, `split` those of them whose plans split anything, be
it the projection alone. Samples are skipped that have no floating tensor, or one that is complex, large or not
finite, or whose loss or gradients are not finite. `--small` runs few operators, without `op_db`, which needs the
package expecttest.
"""

import re
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from ..codegen.planner.planner import optimize
from ..codegen.verification.reference import state_of, train_module
from ..codegen.verification.verify import TOLERANCE, Trial
from ..codegen.verification.verify import run as run_trials
from ..codegen.verification.worker import load_program
from ..model.capture.objective import TrainedModule
from ..model.errors import PartitaError
from ..model.machine.machine import Machine
from ..model.training import PROJECTION
from .cases import Row, Tell, each
from .models import first_sentence, slow_machine

SAMPLES = 2
"""Samples of each operator, drawn at random."""
MOST_ELEMENTS = 4096
"""Of a tensor; samples with larger ones are skipped."""
MOST_TENSORS = 8
SECONDS = 20.0
"""Limit on one search."""
UNINITIALIZED = ("empty_like", "new_empty", "new_empty_strided", "empty_strided", "empty_permuted", "empty")
"""Operators that return whatever is in memory."""
SKIPPED, VERIFIED, WRONG = "skipped", "verified", "WRONG"


@dataclass(frozen=True)
class Operator:
    """A function of tensors and what else it takes; `samples` makes tuples (arguments, keyword arguments)."""

    name: str
    call: Callable[..., Any]
    samples: Callable[[], Sequence[tuple[tuple[Any, ...], dict[str, Any]]]]


class Called(nn.Module):
    """A call; its tensors that require a gradient are parameters, others buffers."""

    def __init__(self, operator: Operator, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        super().__init__()
        leaves, self.structure = pytree.tree_flatten((arguments, options))
        self.leaves = [f"x{i}" if isinstance(leaf, Tensor) else leaf for i, leaf in enumerate(leaves)]
        self.tensors = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        for i in self.tensors:
            value = leaves[i].detach().clone().contiguous()
            if leaves[i].requires_grad:
                self.register_parameter(f"x{i}", nn.Parameter(value))
            else:
                self.register_buffer(f"x{i}", value)
        self.operator, self.scale = operator, nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> list[Tensor]:
        leaves = [self._tensor(leaf) if i in self.tensors else leaf for i, leaf in enumerate(self.leaves)]
        arguments, options = pytree.tree_unflatten(leaves, self.structure)
        made = [y for y in pytree.tree_leaves(self.operator.call(*arguments, **options)) if isinstance(y, Tensor)]
        return [x * self.scale, *map(_floats, made)]

    def _tensor(self, name: str) -> Tensor:
        found: Tensor = getattr(self, name)
        return found.clone() if found.requires_grad else found  # some operators write to what they are given


def _floats(y: Tensor) -> Tensor:
    y = torch.view_as_real(y.resolve_conj()) if y.is_complex() else y
    return y if y.is_floating_point() else y.to(torch.float64)


FEW = (
    ("cdist", torch.cdist, ((4, 5, 3), (4, 6, 3))),
    ("fft.rfft", torch.fft.rfft, ((4, 6),)),
    ("linalg.svdvals", torch.linalg.svdvals, ((4, 5, 3),)),
    ("renorm", partial(torch.renorm, p=2, dim=1, maxnorm=0.5), ((4, 6),)),
)


def _few() -> list[Operator]:
    """Operators with tensors of given shapes."""

    def samples(shapes: Sequence[tuple[int, ...]]) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        generator = torch.Generator().manual_seed(0)
        tensors = (torch.randn(s, dtype=torch.float64, generator=generator) for s in shapes)
        return [(tuple(x.requires_grad_() for x in tensors), {})]

    return [Operator(name, call, partial(samples, shapes)) for name, call, shapes in FEW]


def _processed(call: Callable[..., Any]) -> Callable[..., Any]:
    """A call whose first argument makes of its result what is differentiable: of eigenvectors what no phase changes."""
    return lambda process, *arguments, **options: process(call(*arguments, **options))


def _all() -> list[Operator]:
    """The operators of `op_db` that take float64."""
    try:
        from torch.testing._internal.common_methods_invocations import op_db
    except ImportError as error:
        raise PartitaError(f"bench operators needs {error.name}: pip install expecttest") from error

    def samples(info: Any) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        found = info.sample_inputs("cpu", torch.float64, requires_grad=info.supports_autograd)
        made = [s for s in found if isinstance(s.input, Tensor | list | tuple)]
        Random(info.name).shuffle(made)
        return [((s.output_process_fn_grad, s.input, *s.args), s.kwargs) for s in made]

    return [
        Operator(
            ".".join(filter(None, (info.name, info.variant_test_name))), _processed(info.op), partial(samples, info)
        )
        for info in op_db
        if torch.float64 in info.dtypes and info.name not in UNINITIALIZED
    ]


def run(small: bool, only: Sequence[str], tell: Tell) -> list[Row]:
    """One row for each operator."""
    machine = _machine()
    rows = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for found in each(_few() if small else _all(), only, tell, lambda found: found.name, "operator"):
            rows.append(measured(found, machine))
            if rows[-1]["result"].startswith(WRONG):
                tell(f"{found.name}: {rows[-1]['result']}")
    return rows


def _machine() -> Machine:
    """Two devices so slow that every operator that can be split is."""
    machine = slow_machine((2,))
    device = replace(machine.device, peak=dict.fromkeys(machine.device.peak, 1e6), memory_bandwidth=1e6)
    return replace(machine, device=device)


def measured(found: Operator, machine: Machine) -> Row:
    """The verdicts on some samples of an operator; `result` is the worst of them."""
    verdicts = Counter[str]()
    split = 0
    for arguments, options in _eligible(found):
        verdict, parts = checked(Called(found, arguments, options), machine)
        verdicts[verdict] += 1
        split += parts and verdict == VERIFIED
        if verdicts.total() - verdicts[SKIPPED] == SAMPLES:
            break
    bad = next((v for v in verdicts if v.startswith(WRONG)), None)
    refused = next((v for v in verdicts if v not in (VERIFIED, SKIPPED)), None)
    result = bad or refused or (VERIFIED if verdicts[VERIFIED] else SKIPPED)
    tried = verdicts.total() - verdicts[SKIPPED]
    return {"operator": found.name, "samples": tried, "verified": verdicts[VERIFIED], "split": split, "result": result}


def _eligible(found: Operator) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """At most a few samples, none of which is too large, or has nothing to train."""
    count = 0
    for arguments, options in found.samples():
        tensors = [x for x in pytree.tree_leaves((arguments, options)) if isinstance(x, Tensor)]
        plain = all(
            x.layout == torch.strided
            and not x.is_complex()
            and 0 < x.numel() <= MOST_ELEMENTS
            and bool(x.isfinite().all())
            for x in tensors
        )
        if plain and len(tensors) <= MOST_TENSORS and any(x.is_floating_point() and x.numel() > 1 for x in tensors):
            count += 1
            yield arguments, options
        if count == 2 * SAMPLES:
            return


def checked(module: Called, machine: Machine) -> tuple[str, bool]:
    """The verdict on a module, and whether something of it is split."""
    given = (torch.ones(2),)
    try:
        plan = optimize(
            module, given, machine, batch=2, batch_dim=0, loss=PROJECTION, dtype="float64", optimizer="sgd",
            mesh=machine.hierarchy, stages=1, micro_batches=1, time_limit=SECONDS, cache="none", workers=1,
        )  # fmt: skip
        with tempfile.TemporaryDirectory(prefix="partita-operator-") as folder:
            path = Path(folder) / "program.py"
            plan.emit(path)
            whole = module.double()
            state, batches = state_of(whole), [{name: given[0].double() for name in ("x",)}]
            model, seed = TrainedModule(whole, given, PROJECTION), load_program(path).SEED
            truth = train_module(model, plan.graph, batches, plan.optimizer, seed)
            values = [torch.tensor(truth.outcome.losses), *truth.outcome.gradients.values()]
            if truth.narrow or not all(bool(value.isfinite().all()) for value in values):
                return SKIPPED, False
            trial = Trial(path, plan.graph, plan.ranks, state, batches, truth.outcome, tolerance=TOLERANCE)
            (verdict,) = run_trials([trial])
    except PartitaError as refusal:
        return _refused(str(refusal)), False
    except RuntimeError:  # PyTorch does not train it either
        return SKIPPED, False
    if verdict["ok"]:
        return VERIFIED, plan.report["unsplit_flops"] < 1
    return f"{WRONG}: {verdict['failure'].splitlines()[0]}", False


def _refused(words: str) -> str:
    """A refusal without the line and the advice, which are the same for all."""
    return re.sub(r",? (in module|at) .*", "", first_sentence(words))


def totals(rows: Sequence[Row]) -> dict[str, Any]:
    """How many operators verify, are refused, have no sample that counts, are wrong; and samples."""
    results = [row["result"] for row in rows]
    wrong, skipped = sum(r.startswith(WRONG) for r in results), results.count(SKIPPED)
    verified = results.count(VERIFIED)
    return {
        "operators": len(rows),
        "verified": verified,
        "refused": len(rows) - verified - skipped - wrong,
        "skipped": skipped,
        "wrong": wrong,
        "samples": sum(row["verified"] for row in rows),
        "split": sum(row["split"] for row in rows),
    }


def summary(rows: Sequence[Row]) -> list[Row]:
    """The results by how often they occur."""
    counts = Counter(row["result"] for row in rows)
    return [{"result": words, "operators": count} for words, count in counts.most_common()]
