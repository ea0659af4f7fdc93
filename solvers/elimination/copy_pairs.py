"""A small circuit's factors in a form with few columns and rows, for a mixed-integer program.

Variables of one option go into a constant. A variable that meets others in one factor only, as weights do, is replaced
by one whose options are the pairs (its option, theirs) left: whatever the others are, an option that is nowhere less
than another, in cost, use or any stream, is in no pair.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, prod

import numpy as np

from .bucket import spread
from .factors import Factor
from .kernels import Bools, Floats, Ints

_PAIRS = 1 << 12  # of a variable; more are left apart
_FIRST = _LAST = -1  # stands for a table's axis of streams or capacities, as variables do for the others


@dataclass(slots=True, eq=False)
class Condensed:
    """Factors over variables of `size` options; `options` turns choices among these into those of all variables."""

    factors: list[Factor]
    size: dict[int, int]
    pairs: list[tuple[int, int, tuple[int, ...], Ints]] = field(default_factory=list)
    """In order: a new variable, the one that it replaces, those around, and its options: [1 + around, pairs]."""

    def options(self, picks: Mapping[int, int]) -> dict[int, int]:
        found = dict(picks)
        for new, old, _, pairs in reversed(self.pairs):
            found[old] = int(pairs[0, found[new]])
        return found


def condensed(factors: Sequence[Factor], size: Mapping[int, int]) -> Condensed:
    """The factors (without transient use) of variables of `size` options in such a form."""
    narrow = [f.narrow() for f in factors]
    fixed = [f for f in narrow if f.time.size == 1]
    rest = [f for f in narrow if f.time.size > 1]
    met = {v for f in rest for v in f.scope}
    found = Condensed(rest, {v: n for v, n in size.items() if v in met})
    if fixed:
        scope = fixed[0].scope
        found.factors.append(_sum([replace(f, scope=scope) for f in fixed], scope))
        found.size[scope[0]] = 1
    new = max(size, default=0) + 1
    for v in sorted(met):
        _replace(found, v, new + len(found.pairs))
    return found


def merged(factors: Sequence[Factor]) -> list[Factor]:
    """The factors (without transient use), those over some of another's variables added to it."""
    found: list[list[Factor]] = []
    for f in sorted(factors, key=lambda f: -len(f.scope)):
        wider = (own for own in found if {*f.scope} <= {*own[0].scope})
        if (own := min(wider, key=lambda own: own[0].time.size, default=None)) is None:
            found.append([f])
        else:
            own.append(f)
    return [_sum(own, own[0].scope) if len(own) > 1 else own[0] for own in found]


def _replace(found: Condensed, v: int, new: int) -> None:
    """Replace a variable by one of pairs, `new`, if it meets others in one factor only."""
    own = [f for f in found.factors if v in f.scope]
    widest = max(own, key=lambda f: len(f.scope))
    around = tuple(u for u in widest.scope if u != v)
    if any(not {*f.scope} <= {*widest.scope} for f in own):
        return
    if prod(found.size[u] for u in widest.scope) > _PAIRS:
        return
    total = _sum(own, (v, *around))
    left = ~_dominated(_columns(total))
    pairs = np.array(np.nonzero(left))
    if not pairs.size:
        return
    found.pairs.append((new, v, around, pairs))
    at = tuple(pairs)
    use = None if total.use is None else total.use[at]
    streams = tuple((w, table[(slice(None), *at)]) for w, table in total.streams)
    found.factors = [f for f in found.factors if v not in f.scope]
    found.factors.append(Factor((new,), total.time[at], use, streams=streams))
    for axis, u in enumerate(around, 1):
        link = np.where(pairs[axis][:, None] == np.arange(found.size[u]), 0.0, inf)
        found.factors.append(Factor((new, u), link, None))
    found.size[new] = pairs.shape[1]
    del found.size[v]


def _sum(factors: Sequence[Factor], scope: tuple[int, ...]) -> Factor:
    """One factor over `scope` in place of several over parts of it, which have all its variables between them."""
    size = {u: n for f in factors for u, n in zip(f.scope, f.time.shape, strict=True)}
    shape = tuple(size[u] for u in scope)
    time = np.zeros(shape)
    use: Floats | None = None
    streams: dict[int, Ints] = {}
    for f in factors:
        time += spread(f.time, f.scope, scope)
        if f.use is not None:
            use = np.zeros((*shape, f.use.shape[-1])) if use is None else use
            use += spread(f.use, (*f.scope, _LAST), (*scope, _LAST))
        for w, table in f.streams:
            total = streams.setdefault(w, np.zeros((len(table), *shape), np.int64))
            total += spread(table, (_FIRST, *f.scope), (_FIRST, *scope))
    return Factor(scope, time, use, streams=tuple(streams.items()))


def _columns(f: Factor) -> Floats:
    """[..., C]: cost, use and streams of every entry."""
    found = [f.time]
    found += [] if f.use is None else [f.use[..., r] for r in range(f.use.shape[-1])]
    found += [stream for _, table in f.streams for stream in table]
    return np.stack(found, axis=-1)


def _dominated(columns: Floats) -> Bools:
    """Where another option of the first variable is in no column more; of equal ones, all but the first."""
    found = ~np.isfinite(columns[..., 0])
    for k in range(len(columns)):
        least = (columns[k] <= columns).all(axis=-1) & ~found[k]
        least[: k + 1] &= (columns[k] < columns[: k + 1]).any(axis=-1)
        found |= least
    return found
