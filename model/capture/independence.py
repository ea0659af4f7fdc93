"""Along which dims a call is independent, found by running it on small random tensors.

As ShardCombine of EasyDist (Alibaba, 2023): a dim of some inputs is cut, the call runs on the parts, and what it
returns is put together. If that is what the call returns for the whole, forward and backward, for inputs of several
sizes, values and cuts, the dim gets an index of its own in the call's notation:

    op(cat(parts)) == cat(op(part) for part in parts)       y[i0, ..] = f(x0[i0, ..], ..)[..]
    op(cat(parts)) == sum(op(part) for part in parts)       y[..] = sum(i0) f(x0[i0, ..], ..)[..]

Sizes are shrunk where the call accepts it, but stay above every whole number among its arguments: a call that shifts by
100 does nothing to ten elements. Whatever cannot be run, or gives no evidence, is whole.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from math import isfinite, prod
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ..operators.unknown import whole_notation
from .trial_values import Operand, equal, samples, scales_of

Run: TypeAlias = Callable[[Sequence[Tensor]], Sequence[Tensor]]
"""All tensors that a call returns, from those that it reads."""
Dims: TypeAlias = tuple[int | None, ...]
"""For every input the dim that is cut; None: it is whole."""
Shapes: TypeAlias = tuple[tuple[int, ...], ...]

MOST_COMBINATIONS = 2048
"""Most choices of a dim of every input that are looked at."""
LARGE = 1 << 16
"""Most elements of a tensor with which a dim is tried at its own size."""
SMALL = (5, 7, 4, 6, 9)
"""Sizes of dims, above all whole numbers among the arguments."""
FEWEST = 3
"""Runs that must give evidence of a split."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One output of a call: its notation, and whether it has a gradient."""

    notation: str
    gradient: bool


class NotPureError(Exception):
    """A call that gives something else the second time, or whose backward fails."""


@dataclass(frozen=True, slots=True)
class Split:
    """Cutting `dims` of the inputs cuts dim `at` of an output; None: the results are added up."""

    dims: Dims
    output: int
    at: int | None


Confirm: TypeAlias = Callable[[Split, Shapes, int], bool]
"""Whether a split that runs show holds for any values too: of inputs of these shapes, cut after so many entries."""


def findings(
    run: Run,
    operands: Sequence[Operand],
    outputs: Shapes,
    constants: Sequence[float],
    confirm: Confirm = lambda split, shapes, cut: True,
) -> list[Finding]:
    """What is found of every output; `constants` are the numbers among the call's arguments. Raises NotPureError."""
    return _Finder(run, tuple(operands), outputs, constants, confirm).findings()


def unsplit(run: Run, operands: Sequence[Operand], outputs: Shapes) -> list[Finding]:
    """Every output of a call that is not run."""
    gradients = _Finder(run, tuple(operands), outputs, ())._differentiable()
    ranks = [len(x.shape) for x in operands]
    return [Finding(whole_notation(ranks, len(shape)), own) for shape, own in zip(outputs, gradients, strict=True)]


@contextmanager
def _one_thread() -> Iterator[None]:
    """Small tensors are not worth several threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class _Finder:
    def __init__(
        self,
        run: Run,
        operands: tuple[Operand, ...],
        outputs: Shapes,
        constants: Sequence[float],
        confirm: Confirm = lambda split, shapes, cut: True,
    ) -> None:
        self.run, self.operands, self.outputs, self.confirm = run, operands, outputs, confirm
        largest = max((size for x in operands for size in x.shape), default=1)
        whole = (abs(int(c)) for c in constants if isfinite(c) and float(c).is_integer())
        self.least = max((n for n in whole if n <= largest), default=0)
        self.scales = scales_of(constants)
        self.backward_failed = self.has_backward = False

    def findings(self) -> list[Finding]:
        with torch.enable_grad(), _one_thread():
            gradients = self._differentiable()
            groups = self._groups()
            base = self._base([dims for dims, _ in groups])
            self._check_repeats(base)
            candidates = [split for _, splits in groups for split in splits]
            splits = [split for split in candidates if self._holds(split, base)]
        if self.backward_failed and not self.has_backward:
            raise NotPureError("its backward fails")
        return [
            Finding(self._notation(o, [s for s in splits if s.output == o]), gradients[o])
            for o in range(len(self.outputs))
        ]

    # -- shapes -------------------------------------------------------------------------------------------------

    def _shapes(self, shapes: Shapes) -> Shapes | None:
        """The shapes of the outputs for these of the inputs; None where the call fails."""
        made = [
            torch.empty(s, dtype=_tested(x.dtype), device="meta") for s, x in zip(shapes, self.operands, strict=True)
        ]
        try:
            with torch.no_grad():
                found = tuple(tuple(y.shape) for y in self.run(made))
        except Exception:  # operators may raise anything
            return None
        return found if len(found) == len(self.outputs) else None  # a call may give as many parts as sizes say

    def _differentiable(self) -> list[bool]:
        """Of every output whether autograd computes gradients of it."""
        made = [
            torch.empty(x.shape, dtype=_tested(x.dtype), device="meta", requires_grad=x.gradient) for x in self.operands
        ]
        try:
            return [y.requires_grad for y in self.run(made)]
        except Exception:  # no kernel without values: as if it were differentiable
            return [any(x.gradient for x in self.operands)] * len(self.outputs)

    def _resized(self, shapes: Shapes, dims: Dims, size: int) -> Shapes:
        return tuple(
            shape if d is None else (*shape[:d], size, *shape[d + 1 :]) for shape, d in zip(shapes, dims, strict=True)
        )

    @property
    def _sizes(self) -> tuple[int, ...]:
        return tuple(self.least + size for size in SMALL)

    def _groups(self) -> list[tuple[Dims, list[Split]]]:
        """Dims that can have any size together, most inputs first, with the splits that the shapes allow."""
        whole = tuple(x.shape for x in self.operands)
        found = []
        for dims in self._combinations():
            changed = {size: self._shapes(self._resized(whole, dims, size)) for size in (*self._sizes[:2], 1)}
            if all(changed.values()):
                splits = [self._split(dims, o, changed) for o in range(len(self.outputs))]
                found.append((dims, [split for split in splits if split is not None]))
        return sorted(found, key=lambda item: -sum(d is not None for d in item[0]))

    def _split(self, dims: Dims, output: int, changed: dict[int, Any]) -> Split | None:
        """The split of an output whose shape follows a size in one dim, or in none."""
        before, places = self.outputs[output], set()
        for size, shapes in changed.items():
            after = shapes[output]
            if len(after) != len(before):
                return None
            moved = [d for d in range(len(before)) if after[d] != before[d]]
            if any(after[d] != size for d in moved) or len(moved) > 1:
                return None
            places.update(moved)
        if not places:
            return Split(dims, output, None)
        (place,) = places if len(places) == 1 else (None,)
        size = next(x.shape[d] for x, d in zip(self.operands, dims, strict=True) if d is not None)
        fits = place is not None and before[place] == size
        return Split(dims, output, place) if fits else None

    def _combinations(self) -> Iterator[Dims]:
        """Choices of one dim or none of every input, all of one size."""
        sizes = dict.fromkeys(size for x in self.operands for size in x.shape if size > 1)
        count = 0
        for size in sizes:
            of_each = [
                [*(d for d, n in enumerate(x.shape) if n == size), None] for x in self.operands
            ]  # aligned choices first
            for dims in product(*of_each):
                count += 1
                if count > MOST_COMBINATIONS:
                    return
                if any(d is not None for d in dims):
                    yield dims

    def _base(self, groups: Sequence[Dims]) -> Shapes:
        """The shapes with every dim small that can be."""
        shapes = tuple(x.shape for x in self.operands)
        taken: set[tuple[int, int]] = set()
        sizes = iter(range(1 << 30))
        for dims in groups:
            places = {(i, d) for i, d in enumerate(dims) if d is not None}
            if places & taken:
                continue
            small = self._sizes[next(sizes) % len(SMALL)]
            if any(shapes[i][d] <= small for i, d in places):
                continue
            smaller = self._resized(shapes, dims, small)
            if self._shapes(smaller) is not None:
                shapes = smaller
                taken |= places
        return shapes

    # -- running ------------------------------------------------------------------------------------------------

    def _check_repeats(self, base: Shapes) -> None:
        """Raise NotPureError where two equal calls differ."""
        for tensors in self._tensors(base, 0):
            first, second = self._outputs(tensors), self._outputs(tensors)
            if first is None or second is None:
                continue
            if any(not equal(a, b) for a, b in zip(first, second, strict=True)):
                raise NotPureError("it gives another result the second time")
            return

    def _outputs(self, tensors: Sequence[Tensor]) -> list[Tensor] | None:
        try:
            found = list(self.run(tensors))
        except Exception:
            return None
        return found if len(found) == len(self.outputs) else None

    def _tensors(self, shapes: Shapes, seed: int) -> Iterator[list[Tensor]]:
        """Inputs of these shapes, of several kinds of values: for one size of all scales."""
        return samples(self.operands, shapes, seed, self.scales if seed == 0 else self.scales[:1])

    def _holds(self, split: Split, base: Shapes) -> bool:
        """True if results of parts are the parts of results, whatever was tried."""
        original = next(x.shape[d] for x, d in zip(self.operands, split.dims, strict=True) if d is not None)
        evidence = 0
        for seed, size in enumerate(dict.fromkeys((*self._sizes[:2], self._largest(split, base, original)))):
            shown = 0
            for tensors in self._tensors(self._resized(base, split.dims, size), seed):
                found = self._outputs(tensors)
                if found is None:
                    continue
                try:
                    if not self._agrees(split, tensors, found[split.output], size):
                        return False
                except Exception:  # the call refuses a part
                    return False
                shown += _varies(found[split.output])
            if not shown:
                return False
            evidence += shown
        size = self._sizes[1]
        shapes = self._resized(base, split.dims, size)
        return evidence >= FEWEST and all(self.confirm(split, shapes, cut) for cut in (1, size // 2))

    def _largest(self, split: Split, base: Shapes, original: int) -> int:
        """The largest size that is tried: that of the model, where it takes no longer than a few hundred entries."""
        elements = max(map(prod, self._resized(base, split.dims, original)))
        return original if elements <= LARGE else min(original, 257 + self.least)

    def _agrees(self, split: Split, tensors: Sequence[Tensor], y: Tensor, size: int) -> bool:
        """True for two ways of cutting if the parts give the whole, forward and backward."""
        at = split.at
        if at is None and not y.is_floating_point():
            return False
        v = torch.randn(y.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(size))
        v = v.to(y.dtype) if y.is_floating_point() else v
        whole = self._gradients(tensors, y, v)
        for cuts in ((size // 2, size - 1, size), (1, size))[: 2 if size < 257 else 1]:
            start, parts, grads = 0, list[Tensor](), list[list[Tensor | None]]()
            for stop in cuts:
                given = [
                    x if d is None else x.detach().narrow(d, start, stop - start).requires_grad_(x.requires_grad)
                    for x, d in zip(tensors, split.dims, strict=True)
                ]
                made = self.run(given)[split.output]
                expected = list(y.shape)
                if at is not None:
                    expected[at] = stop - start
                if list(made.shape) != expected:
                    return False
                parts.append(made.detach())
                grads.append(self._gradients(given, made, v if at is None else v.narrow(at, start, stop - start)))
                start = stop
            if not equal(_together(parts, at), y.detach()):
                return False
            for x, d, mine, *own in zip(tensors, split.dims, whole, *grads, strict=True):
                if not _same_gradient(x, d, mine, own, _lengths(cuts)):
                    return False
        return True

    def _gradients(self, tensors: Sequence[Tensor], y: Tensor, v: Tensor) -> list[Tensor | None]:
        """The gradients of the inputs for the gradient `v` of an output."""
        wanted = [x for x in tensors if x.requires_grad]
        if not wanted or not y.requires_grad:
            return [None] * len(tensors)
        try:
            found = iter(torch.autograd.grad(y, wanted, v, allow_unused=True))
        except Exception:
            self.backward_failed = True
            raise
        self.has_backward = True
        return [next(found) if x.requires_grad else None for x in tensors]

    # -- the result ---------------------------------------------------------------------------------------------

    def _notation(self, output: int, splits: Sequence[Split]) -> str:
        """The notation of an output; of splits that exclude each other the first is taken."""
        inputs = [[":"] * len(x.shape) for x in self.operands]
        names = [f"d{d}" for d in range(len(self.outputs[output]))]
        free, sums, locked = 0, list[str](), dict.fromkeys(names)
        for split in splits:
            places = [(i, d) for i, d in enumerate(split.dims) if d is not None]
            if any(inputs[i][d] != ":" for i, d in places):
                continue
            if split.at is not None and names[split.at] not in locked:
                continue
            name = f"i{free}"
            free += 1
            for i, d in places:
                inputs[i][d] = name
            if split.at is None:
                sums.append(name)
            else:
                del locked[names[split.at]]
                names[split.at] = name
        if not free:
            return whole_notation([len(x.shape) for x in self.operands], len(names))
        arguments = ", ".join(f"x{i}[{', '.join(dims)}]" for i, dims in enumerate(inputs))
        term = f"f({arguments})" + (f"[{', '.join(locked)}]" if locked else "")
        return f"y[{', '.join(names)}] = " + (f"sum({', '.join(sums)}) " if sums else "") + term


def _tested(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype.is_floating_point else dtype


def _lengths(cuts: Sequence[int]) -> list[int]:
    return [stop - start for start, stop in zip((0, *cuts), cuts, strict=False)]


def _together(parts: Sequence[Tensor], dim: int | None) -> Tensor:
    return torch.cat(list(parts), dim) if dim is not None else torch.stack(list(parts)).sum(0)


def _varies(y: Tensor) -> bool:
    """True if a result is finite and not one number: what is constant shows nothing."""
    y = y.detach()
    if y.is_floating_point() and not bool(y.isfinite().all()):
        return False
    return bool((y != y.flatten()[0]).any()) if y.numel() > 1 else bool((y != 0).all())


def _same_gradient(
    x: Tensor, dim: int | None, whole: Tensor | None, parts: Sequence[Tensor | None], lengths: Sequence[int]
) -> bool:
    """True if the gradients by parts give the whole's, joined along `dim` or added up; None is zero."""
    if whole is None and all(part is None for part in parts):
        return True
    shapes = [x if dim is None else x.narrow(dim, 0, length) for length in lengths]
    given = [torch.zeros_like(s) if part is None else part for part, s in zip(parts, shapes, strict=True)]
    return equal(_together(given, dim), torch.zeros_like(x) if whole is None else whole, 1e-7)
