"""The initial values of a module: how its constructor makes them, or the values themselves."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from math import prod

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from ..errors import PartitaError
from ..initial_values import SERIAL, InitialValues, Write
from .construction import Construction
from .contents import dtype_name, shortest
from .held_tensors import all_buffers
from .random_stream import Position, after

MAX_CONSTANT = 64
"""Most elements whose values are listed in a program."""

MOST_BYTES = 1 << 31
"""Weights of at most so many bytes are made in memory, where the constructor does not run on tensors without memory."""


def values_of(module: nn.Module, names: Collection[str]) -> InitialValues:
    """The values that the tensors of a module have now; those on meta have none."""
    found = {name: tensor.detach() for name, tensor in _state(module).items() if name in names}
    found = {name: x for name, x in found.items() if not x.is_meta and not isinstance(x, FakeTensor)}
    return InitialValues(stored=tuple(found), values=found)


def constructed(build: Callable[[], nn.Module], shapes: Mapping[str, Sequence[int]], seed: int) -> InitialValues:
    """How `build` makes the tensors of a module after torch.manual_seed(seed), of those with names and shapes given.

    Some may be left out. The state of torch's generator is kept.
    """
    best = InitialValues()
    small = 4 * sum(map(prod, shapes.values())) <= MOST_BYTES
    for fake in (FakeTensorMode(allow_non_fake_inputs=True), *([None] if small else [])):
        try:
            found = _recorded(build, shapes, seed, fake)
        except Exception:  # whatever a constructor raises; the program then asks for a checkpoint
            continue
        best = max(best, found, key=lambda each: len(each.names))
        if best.names >= shapes.keys():
            break
    return best


def _recorded(
    build: Callable[[], nn.Module], names: Collection[str], seed: int, fake: FakeTensorMode | None
) -> InitialValues:
    with torch.random.fork_rng(devices=[]):
        construction = Construction(seed)
        with ExitStack() as modes:
            for mode in (fake, construction) if fake else (construction,):
                modes.enter_context(mode)
            module = build()
        state = {name: x for name, x in _state(module).items() if name in names}
        understood: list[tuple[int, Position | None, Write]] = []
        left: list[str] = []
        for name, tensor in state.items():
            made = construction.writes(name, tensor)
            if made is None and not construction.unset(tensor):
                left.append(name)
            understood += made or ()
        writes, unreachable = _in_order(understood)
        left += [name for name in state if name in unreachable]
        values = {}
        for name in left:
            try:
                values[name] = construction.value(state[name]) if fake else state[name].detach()
            except PartitaError:
                continue  # the program refuses to begin without it
    few = {name: x for name, x in values.items() if x.numel() <= MAX_CONSTANT and bool(x.isfinite().all())}
    writes += [_listed(name, x) for name, x in few.items()]
    values = {name: x for name, x in values.items() if name not in few}
    return InitialValues(tuple(writes), tuple(values), values)


def _listed(name: str, x: Tensor) -> Write:
    """Few values as numbers."""
    numbers = x.flatten().tolist()
    if x.is_floating_point() and x.dtype != torch.float64:
        numbers = [shortest(number) for number in numbers]
    return Write(name, tuple(x.shape), "values", tuple(numbers), dtype=dtype_name(x.dtype))


def _state(module: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers under the first of their names."""
    return {**dict(module.named_parameters()), **all_buffers(module)}


def _in_order(found: Sequence[tuple[int, Position | None, Write]]) -> tuple[list[Write], set[str]]:
    """The writes in the order of the constructor, with what is skipped between them, and the names of those left out.

    A constructor that goes back to an earlier state of the generator is not followed.
    """
    writes: list[Write] = []
    unreachable: set[str] = set()
    at = Position(None, 0)
    for _, position, write in sorted(found, key=lambda each: each[0]):
        made, then = ([write], at) if position is None else _drawn(at, position, write)
        if then is None:
            unreachable.add(str(write.name))
            continue
        writes += made
        at = then
    return [write for write in writes if write.name not in unreachable], unreachable


def _drawn(at: Position, position: Position, write: Write) -> tuple[list[Write], Position | None]:
    """A draw at a position from the stream at `at`, with what precedes it, and where the stream is then.

    Few normal numbers are drawn in pairs, of which the generator keeps the second one for the next few.
    """
    made, seed = list[Write](), None
    if position.seed != at.seed:
        if position.seed is None:
            return [], None
        at, seed = Position(position.seed, 0), position.seed
    if write.kind == "normal" and prod(write.shape) < SERIAL and at.pair != position.pair:
        one = Write(None, (1,), "normal", (0.0, 1.0))
        if at.pair is not None:
            made.append(one)
        if position.pair is not None:
            made.append(replace(one, skipped=position.pair - at.offset))
            at = replace(at, offset=position.pair + 4)
        at = replace(at, pair=position.pair)
    made.append(replace(write, skipped=position.offset - at.offset))
    made[0] = replace(made[0], seed=seed)
    if any(each.skipped < 0 for each in made):
        return [], None
    then: Position | None = replace(position, pair=at.pair)
    for _ in range(write.rounds):
        then = then and after(then, write.drawn, prod(write.shape), write.dtype, contiguous=True)
    return made, then
