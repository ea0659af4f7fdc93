"""Along which dims a call is independent, found by running it on small random tensors.

As ShardCombine of EasyDist (Alibaba, 2023): a dim of some inputs is cut, the call runs on the parts, and what it
returns is put together. If that is what the call returns for the whole, forward and backward, for inputs of several
sizes, values and cuts, the dim gets an index of its own in the call's notation:

    op(cat(parts)) == cat(op(part) for part in parts)       y[i0, ..] = f(x0[i0, ..], ..)[..]
    op(cat(parts)) == sum(op(part) for part in parts)       y[..] = sum(i0) f(x0[i0, ..], ..)[..]

Sizes are shrunk where the call accepts it, but stay above every whole number among its arguments: a call that shifts by
100 does nothing to ten elements. Whatever cannot be run, or gives no evidence, is whole.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from math import isfinite, prod
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ..graph.notation import accesses, parse
from ..operators.unknown import whole_notation

Run: TypeAlias = Callable[[Sequence[Tensor]], Sequence[Tensor]]
"""All tensors that a call returns, from those that it reads."""
Dims: TypeAlias = tuple[int | None, ...]
"""For every input the dim that is cut; None: it is whole."""
Shapes: TypeAlias = tuple[tuple[int, ...], ...]

MOST_COMBINATIONS = 2048
"""Most choices of a dim of every input that are looked at."""
MOST_ELEMENTS = 1 << 18
"""Most elements of a tensor with which a call is run."""
MOST_WORK = 1 << 20
"""Elements after which a split of a size has been tried with enough values."""
SMALL = (5, 7, 4, 6, 9)
"""Sizes of dims, above all whole numbers among the arguments."""
FEWEST = 3
"""Runs that must give evidence of a split."""


@dataclass(frozen=True, slots=True)
class Operand:
    """An input of a call; `gradient`: it has one."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    gradient: bool


@dataclass(frozen=True, slots=True)
class Finding:
    """One output of a call: its notation, whether it has a gradient, and whether its backward is linear in that."""

    notation: str
    gradient: bool
    linear: bool = True


class NotPureError(Exception):
    """A call that gives something else the second time, or whose backward fails."""


@dataclass(frozen=True, slots=True)
class _Split:
    """Cutting `dims` of the inputs cuts dim `at` of an output; None: the results are added up."""

    dims: Dims
    output: int
    at: int | None


def findings(
    run: Run, operands: Sequence[Operand], outputs: Shapes, constants: Sequence[float], *, custom: bool = False
) -> list[Finding]:
    """What is found of every output; `constants` are the numbers among the call's arguments.

    `custom`: the backward is the user's, and may be no gradient. Raises NotPureError.
    """
    return _Finder(run, tuple(operands), outputs, constants, custom).findings()


def unsplit(run: Run, operands: Sequence[Operand], outputs: Shapes) -> list[Finding]:
    """Every output of a call that is not run."""
    gradients = _Finder(run, tuple(operands), outputs, (), False)._differentiable()
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
        self, run: Run, operands: tuple[Operand, ...], outputs: Shapes, constants: Sequence[float], custom: bool
    ) -> None:
        self.run, self.operands, self.outputs, self.custom = run, operands, outputs, custom
        largest = max((size for x in operands for size in x.shape), default=1)
        whole = (abs(int(c)) for c in constants if isfinite(c) and float(c).is_integer())
        self.least = max((n for n in whole if n <= largest), default=0)
        # Magnitudes of the values: a call may do nothing to what is below a limit.
        scales = (abs(float(c)) for c in constants if isfinite(c) and 1e-6 < abs(c) < 1e6)
        self.scales = tuple(dict.fromkeys((1.0, 30.0, *scales)))[:4]
        self.backward_failed = self.has_backward = False

    def findings(self) -> list[Finding]:
        with torch.enable_grad(), _one_thread():
            gradients = self._differentiable()
            groups = self._groups()
            base = self._base([dims for dims, _ in groups])
            self._check_repeats(base)
            if self.custom:
                self._check_joint(base)
            linear = [not self.custom or self._is_linear(o, base) for o in range(len(self.outputs))]
            candidates = [split for _, splits in groups for split in splits]
            splits = [split for split in candidates if self._holds(split, base)]
        if self.backward_failed and not self.has_backward:
            raise NotPureError("its backward fails")
        return [
            Finding(self._notation(o, [s for s in splits if s.output == o]), gradients[o], linear[o])
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

    def _groups(self) -> list[tuple[Dims, list[_Split]]]:
        """Dims that can have any size together, most inputs first, with the splits that the shapes allow."""
        whole = tuple(x.shape for x in self.operands)
        found = []
        for dims in self._combinations():
            changed = {size: self._shapes(self._resized(whole, dims, size)) for size in (*self._sizes[:2], 1)}
            if all(changed.values()):
                splits = [self._split(dims, o, changed) for o in range(len(self.outputs))]
                found.append((dims, [split for split in splits if split is not None]))
        return sorted(found, key=lambda item: -sum(d is not None for d in item[0]))

    def _split(self, dims: Dims, output: int, changed: dict[int, Any]) -> _Split | None:
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
            return _Split(dims, output, None)
        (place,) = places if len(places) == 1 else (None,)
        size = next(x.shape[d] for x, d in zip(self.operands, dims, strict=True) if d is not None)
        fits = place is not None and before[place] == size
        return _Split(dims, output, place) if fits else None

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

    def _is_linear(self, output: int, base: Shapes) -> bool:
        """True if a backward was seen to be linear in the gradient of an output."""
        seen = False
        for number, tensors in enumerate(self._tensors(base, 0)):
            found = self._outputs(tensors)
            if found is None:
                continue
            y = found[output]
            generator = torch.Generator().manual_seed(number)
            v, w = (torch.randn(y.shape, dtype=torch.float64, generator=generator).to(y.dtype) for _ in range(2))
            try:
                parts = [self._gradients(tensors, self.run(tensors)[output], 10.0**number * g) for g in (v, w, v + w)]
            except Exception:  # it has no gradient for such values
                continue
            seen = True
            for one, other, both in zip(*parts, strict=True):
                if both is None or one is None or other is None:
                    continue
                if not equal(one + other, both, 1e-9):
                    return False
        return seen

    def _check_joint(self, base: Shapes) -> None:
        """Raise NotPureError unless a backward adds up what the gradients of its outputs give one by one."""
        for number, tensors in enumerate(self._tensors(base, 0)):
            wanted, found = [x for x in tensors if x.requires_grad], self._outputs(tensors)
            trained = [y for y in found or () if y.requires_grad]
            if len(trained) < 2 or not wanted:
                continue
            generator = torch.Generator().manual_seed(number)
            vs = [torch.randn(y.shape, dtype=torch.float64, generator=generator).to(y.dtype) for y in trained]
            try:
                joint = torch.autograd.grad(trained, wanted, vs, allow_unused=True, retain_graph=True)
                single = [
                    torch.autograd.grad(y, wanted, v, allow_unused=True, retain_graph=True)
                    for y, v in zip(trained, vs, strict=True)
                ]
            except Exception:  # it has no gradient for such values
                continue
            for x, both, *parts in zip(wanted, joint, *single, strict=True):
                given = [torch.zeros_like(x) if part is None else part for part in parts]
                if not equal(torch.stack(given).sum(0), torch.zeros_like(x) if both is None else both, 1e-9):
                    raise NotPureError("its backward mixes the gradients of its outputs")

    def _outputs(self, tensors: Sequence[Tensor]) -> list[Tensor] | None:
        try:
            found = list(self.run(tensors))
        except Exception:
            return None
        return found if len(found) == len(self.outputs) else None

    def _tensors(self, shapes: Shapes, seed: int) -> Iterator[list[Tensor]]:
        """Inputs of these shapes, of several kinds of values: for one size of all scales."""
        return samples(self.operands, shapes, seed, self.scales if seed == 0 else self.scales[:1])

    def _holds(self, split: _Split, base: Shapes) -> bool:
        """True if results of parts are the parts of results, whatever was tried."""
        original = next(x.shape[d] for x, d in zip(self.operands, split.dims, strict=True) if d is not None)
        evidence = 0
        for seed, size in enumerate(dict.fromkeys((*self._sizes[:2], min(original, 257 + self.least)))):
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
        return evidence >= FEWEST

    def _agrees(self, split: _Split, tensors: Sequence[Tensor], y: Tensor, size: int) -> bool:
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

    def _notation(self, output: int, splits: Sequence[_Split]) -> str:
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


def samples(
    operands: Sequence[Operand], shapes: Sequence[tuple[int, ...]], seed: int, scales: Sequence[float] = (1.0,)
) -> Iterator[list[Tensor]]:
    """Random inputs of these shapes, of several kinds of values; none where a call with them takes too long."""
    elements = max(map(prod, shapes), default=1)
    if elements > MOST_ELEMENTS:
        return
    kinds = list(product(scales, _KINDS))
    for number, (scale, kind) in enumerate(kinds[: max(len(_KINDS), MOST_WORK // elements)]):
        generator = torch.Generator().manual_seed(1000 * seed + number)
        yield [_values(shape, x, kind, scale, generator, seed) for shape, x in zip(shapes, operands, strict=True)]


def resized(shapes: Sequence[tuple[int, ...]], notation: str, sizes: Mapping[str, int]) -> list[tuple[int, ...]]:
    """The shapes of the inputs with the indices of a notation at these sizes."""
    (term,) = parse(notation).terms
    indices = [access.indices for access in accesses(term)]
    return [
        tuple(sizes.get(name, size) for name, size in zip(names, shape, strict=True))
        for names, shape in zip(indices, shapes, strict=True)
    ]


_KINDS = ("normal", "positive", "above one", "ties", "definite")


def _values(
    shape: tuple[int, ...], x: Operand, kind: str, scale: float, generator: torch.Generator, seed: int
) -> Tensor:
    """Random values: of floats of this kind and scale; of whole numbers, which may be places in a small dim, from 0."""
    if x.dtype == torch.bool:
        return torch.rand(shape, generator=generator) < (0.5 if kind != "positive" else 0.9)
    if not x.dtype.is_floating_point:
        high = {"normal": 4, "positive": 2, "above one": 3}.get(kind, 4 + seed)
        return torch.randint(0, high, shape, generator=generator).to(x.dtype)
    value = torch.randn(shape, dtype=torch.float64, generator=generator)
    if kind == "positive":
        value = torch.rand(shape, dtype=torch.float64, generator=generator) * 0.9 + 0.05
    elif kind == "above one":
        value = 1.01 + value.abs()
    elif kind == "ties":
        value = (2 * value).round() / 2
    elif kind == "definite" and len(shape) > 1 and shape[-1] == shape[-2]:
        value = value @ value.mT / shape[-1] + torch.eye(shape[-1], dtype=torch.float64)
    return (value * scale).requires_grad_(x.gradient)


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


_TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-5}


def equal(a: Tensor, b: Tensor, tolerance: float = 0.0) -> bool:
    """True if two tensors agree up to rounding, NaN where NaN is."""
    a, b = a.detach(), b.detach()
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not b.is_floating_point():
        return torch.equal(a, b)
    if b.dtype not in _TOLERANCES:
        return False
    finite = b.isfinite()
    if not torch.equal(a.nan_to_num(0.5, 2.0, -2.0)[~finite], b.nan_to_num(0.5, 2.0, -2.0)[~finite]):
        return False
    if not bool(a.isfinite().eq(finite).all()):
        return False
    if not bool(finite.any()):
        return True
    bound = max(tolerance, _TOLERANCES[b.dtype]) * (1 + float(b[finite].abs().max()))
    return bool((a[finite] - b[finite]).abs().max() <= bound)
