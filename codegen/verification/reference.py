"""The unsharded reference: the user's module, whole, on one CPU in float64, trained with plain torch.optim.

It shares with the emitted program only what is random: initial weights, dropout masks and the weights of a projection,
all functions of names and counters.
"""

# mypy: disable-error-code="no-untyped-call"
# (the counters are program text without types)

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from ...model.capture.held_tensors import all_buffers
from ...model.capture.inputs import Inputs
from ...model.capture.objective import Objective, TrainedModule, objective
from ...model.errors import PartitaError
from ...model.graph.pcg import PCG
from ...model.operators.contraction import grouped_product
from ...model.operators.operator import is_native, is_random
from ...model.training import PROJECTION
from ..emission.common.defaults import BETAS, CLIP_NORM, EPS, LEARNING_RATE, WEIGHT_DECAY, schedule
from ..emission.templates.counters import projection_weights
from .random_calls import counted_numbers, drawn
from .statistics import InPieces, Pieces
from .synthetic import generator
from .worker import Outcome

_SCALES = ("weight", "scale", "gain", "gamma", "g")  # what multiplies, where it has one dim
_DOUBLE = {torch.float32: torch.float64, torch.complex64: torch.complex128}
_NARROW = (torch.float32, torch.float16, torch.bfloat16)


def random_weight(name: str, shape: Sequence[int]) -> Tensor:
    """Float64 values that keep activations near 1: by fan-in, norm weights near 1, biases small."""
    noise = torch.randn(tuple(shape), generator=generator("weight", name), dtype=torch.float64)
    if len(shape) > 1:
        return noise * math.sqrt(shape[0] / noise.numel())
    return 1 + 0.1 * noise if name.rpartition(".")[2] in _SCALES else 0.1 * noise


def materialize(module: nn.Module) -> nn.Module:
    """A copy on the CPU in float64, modes (train, eval) kept, with random weights that depend on their names alone.

    Raises PartitaError if a buffer is on the meta device, so that its values are unknown.
    """
    memo: dict[int, Any] = {}
    for name, parameter in module.named_parameters():
        memo[id(parameter)] = nn.Parameter(random_weight(name, parameter.shape), parameter.requires_grad)
    for name, buffer in all_buffers(module).items():
        if buffer.is_meta:
            raise PartitaError(f"buffer {name!r} is on the meta device: its values are not known")
        memo[id(buffer)] = buffer.detach().to("cpu", torch.float64 if buffer.is_floating_point() else None, copy=True)
    return copy.deepcopy(module, memo)


def nudge(module: nn.Module) -> None:
    """Change every weight of a module in float64 by about one unit in its last place, the same each time."""
    with torch.no_grad():
        for name, p in module.named_parameters():
            signs = torch.randint(2, p.shape, generator=generator("nudge", name), dtype=p.dtype) * 2 - 1
            p.mul_(1 + signs * torch.finfo(p.dtype).eps)


def state_of(module: nn.Module) -> dict[str, Tensor]:
    """Copies of all parameters and buffers, non-persistent ones included, under all their names."""
    tensors = (*module.named_parameters(remove_duplicate=False), *all_buffers(module).items())
    return {name: tensor.detach().clone() for name, tensor in tensors}


class CountedNumbers(TorchDispatchMode):
    """Makes all random numbers those of the emitted program: functions of (seed, step, call site, element).

    Works below autograd, where dropout draws its noise, so modules, functions and attention are all covered. `sites`
    counts the calls, other than `unread`: the numbers of those that fill memory which nothing reads, which a graph does
    not count either. At the sites `undropped` dropout keeps all elements. What the module casts to float32, the dtype
    in which it was captured, stays in float64, as in the program: else gradients that are nothing but rounding differ,
    which AdamW makes whole steps of. `narrow` is True if the module left float64 nevertheless.
    """

    def __init__(self, seed: int, step: int, unread: Set[int] = frozenset(), undropped: Set[int] = frozenset()) -> None:
        super().__init__()
        self.seed, self.step, self.sites, self.narrow = seed, step, 0, False
        self.calls, self.unread, self.undropped = 0, unread, undropped

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if given.get("dtype") in _DOUBLE:  # a cast, or a new tensor: the program has its own dtype there
            given["dtype"] = _DOUBLE[given["dtype"]]
        numbers = drawn(func, args, given, self._draw)
        if numbers is not None:
            return args[0].copy_(numbers) if func._schema.name.endswith("_") else numbers
        result = func(*args, **given)
        self.narrow |= any(isinstance(x, Tensor) and x.dtype in _NARROW for x in pytree.tree_leaves(result))
        return result

    def _draw(self, shape: tuple[int, ...], kind: str, given: tuple[float, ...]) -> Tensor:
        self.calls += 1
        if self.calls - 1 in self.unread:
            return torch.zeros(shape, dtype=torch.float64)
        self.sites += 1
        if self.sites - 1 in self.undropped:  # torch divides by the share that is kept
            return torch.full(shape, 1 - given[0], dtype=torch.float64)
        return counted_numbers(shape, kind, given, (self.seed, self.step, self.sites - 1))


class UnreadDraws(CountedNumbers):
    """Finds the random calls that write to memory which no call after them reads; `found` are their numbers.

    A call reads the memory of an operand unless its result lies there too, as a view does; see `drop_unread_calls`.
    """

    def __init__(self) -> None:
        super().__init__(seed=0, step=0)
        self._written: dict[int, tuple[Tensor, list[int]]] = {}  # tensors keep their memory from being used again

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        before = self.calls
        result = super().__torch_dispatch__(func, types, args, kwargs)
        made = _storages(result)
        for number in _storages((args, kwargs)) - made:
            self._written.pop(number, None)
        if func._schema.is_mutable and self.calls > before:
            (number,) = made
            self._written.setdefault(number, (result, []))[1].extend(range(before, self.calls))
        return result

    @property
    def found(self) -> frozenset[int]:
        return frozenset(call for _, calls in self._written.values() for call in calls)


def _storages(values: Any) -> set[int]:
    return {x.untyped_storage()._cdata for x in pytree.tree_leaves(values) if isinstance(x, Tensor)}


class GroupsInDouble(TorchDispatchMode):
    """Products of groups in float64, which PyTorch has only up to float32, forward and backward."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.aten._grouped_mm.default and args[0].dtype == torch.float64:
            return _grouped_product(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _grouped_product(
    a: Tensor, b: Tensor, offs: Tensor | None = None, bias: Tensor | None = None, out_dtype: torch.dtype | None = None
) -> Tensor:
    """As `torch._grouped_mm`; without `offs`, the products of two lists of matrices."""
    made = a @ b if offs is None else grouped_product(a, b, offs)
    return (made if bias is None else made + bias).to(out_dtype or made.dtype)


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Set the default dtype in this context."""
    kept = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(kept)


def loss_of(found: Objective, seed: int) -> Tensor:
    """The scalar that is minimized: the loss, or the sum of the projections."""
    if not found.projected:
        return found.tensors[0].reshape(())
    total = torch.zeros((), dtype=torch.float64)
    for site, x in enumerate(found.tensors):
        index = torch.arange(x.numel()).view(x.shape)
        total = total + (x * projection_weights(index, seed, site).to(x.dtype)).sum()
    return total


@dataclass(frozen=True, slots=True)
class Semantics:
    """How training by a plan differs from training the module; the reference follows it.

    `normalized`: what batch norms normalize separately; `stale`: gradients are those at the weights of the step before
    (PipeDream-2BW). Without `dropout`, what torch's own generators would drop is kept.
    """

    normalized: tuple[Pieces, ...] = ()
    stale: bool = False
    dropout: bool = True


PLAIN = Semantics()


class Optimizer:
    """Plain torch.optim with the program's parameter groups, clipping and schedule.

    `stale`: see `Semantics`.
    """

    def __init__(self, name: str, module: nn.Module, stale: bool = False) -> None:
        trained = [p for p in module.parameters() if p.requires_grad]
        groups = [
            {"params": [p for p in trained if p.dim() > 1], "weight_decay": WEIGHT_DECAY[name]},
            {"params": [p for p in trained if p.dim() <= 1], "weight_decay": 0.0},
        ]
        self.parameters = trained
        self.inner = _OPTIMIZERS[name](groups)
        self.rates = torch.optim.lr_scheduler.LambdaLR(self.inner, schedule)
        self.older = self._values() if stale else []

    def _values(self) -> list[Tensor]:
        return [p.detach().clone() for p in self.parameters]

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Give the module the weights with which this step computes, forward and backward."""
        newest = self._values() if self.older else []
        with torch.no_grad():
            for p, value in zip(self.parameters, self.older, strict=bool(self.older)):
                p.copy_(value)
        yield
        with torch.no_grad():
            for p, value in zip(self.parameters, newest, strict=bool(newest)):
                p.copy_(value)
        self.older = newest

    def zero_grad(self) -> None:
        self.inner.zero_grad(set_to_none=True)

    def step(self) -> None:
        nn.utils.clip_grad_norm_(self.parameters, CLIP_NORM)
        self.inner.step()
        self.rates.step()


_OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda groups: torch.optim.SGD(groups, LEARNING_RATE),
    "adam": lambda groups: torch.optim.Adam(groups, LEARNING_RATE, betas=BETAS, eps=EPS),
    "adamw": lambda groups: torch.optim.AdamW(groups, LEARNING_RATE, betas=BETAS, eps=EPS),
}


def train(
    module: nn.Module,
    loss_of_step: Callable[[Mapping[str, Tensor], int], Tensor],
    batches: Sequence[Mapping[str, Tensor]],
    optimizer: str,
    semantics: Semantics = PLAIN,
) -> Outcome:
    """Train `module` on whole batches: `loss_of_step(batch, step)` is its loss in one step.

    Raises PartitaError if its backward fails.
    """
    update = Optimizer(optimizer, module, semantics.stale)
    losses, gradients = list[float](), dict[str, Tensor]()
    for step, batch in enumerate(batches):
        with update.computing(), GroupsInDouble():
            with InPieces(semantics.normalized):
                loss = loss_of_step(batch, step)
            update.zero_grad()
            try:
                loss.backward()
            except RuntimeError as error:  # of the user's module, which PyTorch cannot differentiate
                raise PartitaError(f"the backward of {type(module).__name__} fails: {error}") from error
        for parameter in module.parameters():
            if parameter.grad is not None and parameter.grad.is_sparse:  # which clipping does not take
                parameter.grad = parameter.grad.to_dense()
        losses.append(loss.item())
        if step == 0:
            gradients = {k: p.grad.clone() for k, p in module.named_parameters() if p.grad is not None}
        update.step()
    return Outcome(losses, gradients, state_of(module))


@dataclass(frozen=True, slots=True)
class Truth:
    """How the training of a module went, which output of it was trained, and whether it left float64 by itself."""

    outcome: Outcome
    objective: str
    narrow: bool


def train_module(
    model: TrainedModule,
    graph: PCG,
    batches: Sequence[Mapping[str, Tensor]],
    optimizer: str,
    seed: int,
    semantics: Semantics = PLAIN,
) -> Truth:
    """Train a user's module (from `materialize`) on the objective of its captured graph.

    Raises PartitaError where the module fails, or draws fewer dropout masks than its graph has, or has a loss where the
    graph projects its outputs.
    """
    module, example = model.module, Inputs.of(model.module, model.inputs)
    sites = 1 + max((node["site"] for node in graph.nodes if is_random(node)), default=-1)
    undropped = frozenset(node["site"] for node in graph.nodes if is_native(node) and not semantics.dropout)
    projected = bool(graph.of("projection"))
    if projected and callable(model.loss):
        raise PartitaError(f"the plan was made with loss={PROJECTION!r}, not with a loss that verify could compare")
    narrow, words = [], []
    unread: frozenset[int] | None = None  # unknown

    def unread_calls(batch: Mapping[str, Tensor]) -> frozenset[int]:
        """Those of a copy: a forward may change its module."""
        memo: dict[int, Any] = {id(p): p for p in module.parameters()}
        draws = UnreadDraws()
        with torch._C.DisableTorchFunction(), draws:  # a batch norm must not be counted twice by `InPieces`
            computed(copy.deepcopy(module, memo), batch)
        return draws.found if draws.sites - len(draws.found) >= sites else frozenset()  # the graph counts them too

    def computed(module: nn.Module, batch: Mapping[str, Tensor]) -> tuple[Objective, Tensor]:
        with default_dtype(torch.float64):
            result = example.call(module, [batch[name] for name in example.names])
            found = objective(result, PROJECTION if projected else model.loss, module)
            return found, loss_of(found, seed)

    def loss_of_step(batch: Mapping[str, Tensor], step: int) -> Tensor:
        nonlocal unread
        try:
            if sites and unread != frozenset():
                unread = unread_calls(batch)
            with CountedNumbers(seed, step, unread or frozenset(), undropped) as counted:
                found, loss = computed(module, batch)
        except PartitaError:
            raise
        except Exception as error:  # whatever the user's forward raises
            raise PartitaError(f"the module fails on random inputs: {type(error).__name__}: {error}") from error
        if counted.sites < sites:
            raise PartitaError(f"the module draws {counted.sites} dropout masks, its graph {sites}")
        narrow.append(counted.narrow)
        words.append(found.words)
        return loss

    outcome = train(module, loss_of_step, batches, optimizer, semantics)
    return Truth(outcome, words[0], any(narrow))
