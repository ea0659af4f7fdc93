"""One copy of a chain solved by label lists of costs and streams that are rounded down.

Near its best solution a copy has few labels that differ by more than the gap asked for: costs and streams are rounded
down to multiples of a `grain`, so that labels which are nearly equal become equal, and their best one bounds all
solutions. It stands for a solution, too, which is within the gap mostly; else a finer grain follows. That takes some
hundredths of a second, where a program takes some tenths.

Streams of next to no weight are left out at first, which bounds a window as well, and halves the columns of labels.
"""

from dataclasses import replace
from math import floor, inf

import numpy as np

from ..protocol import OutOfTimeError, TooManyError
from ..work import spent
from .circuit import Circuit, Weights
from .copy_descent import descended
from .copy_program import Found
from .factors import Factor
from .kernels import Floats
from .labels import LabelBounds, Listing, enumerate_labels
from .longest_streams import with_streams
from .order import TooWideError
from .segment_lists import with_columns
from .tables import check_clock
from .transient_relaxation import with_factors

_LABELS = 1 << 13  # of a table
_SECONDS = 0.3  # of work; a program takes about as much
_GRAIN = 2.0  # of the gap, among all tables: what rounding loses is less, mostly
_LEAST = 0.02, 0.0, None, None  # weights of the streams of each listing; None: as before
_COARSE = 1 / 12  # of what is open: the gap of the first lists, unless a smaller one suffices
_LESS = 1 / 4  # of what is open, if lists were too long


def list_copy(
    circuit: Circuit,
    at: tuple[Weights, Floats],
    known: Found,
    gap: float,
    enough: float = inf,
    until: float = inf,
) -> Found:
    """`known` of a circuit without chains, improved to about that gap (ns), or to a bound that is `enough`, if lists
    stay short; `at`: weights of its windows and prices that prove a bound near its cost.
    """
    most_work, share = spent() + _SECONDS, 1.0
    paid = float(at[1] @ np.array(circuit.network.capacities, np.float64))
    columns, more = circuit, list[float]()
    for least in _LEAST:
        if (left := min(known.cost, enough) - known.bound) <= gap:
            break
        if least is not None:
            streams = {w: [k for k, part in enumerate(own) if part >= least] for w, own in at[0].items()}
            small, weights = with_streams(circuit, at[0], streams)
            try:
                columns, more = with_columns(small, {*range(len(small.factors))}, weights)
            except (TooManyError, TooWideError):
                break
        if not more:
            continue
        reach, tables = known.bound + share * left, sum(f.time.size > 1 for f in columns.factors)
        grain = max(1, floor(_GRAIN * max(gap, share * left * _COARSE) / max(1, tables)))
        rounded = _rounded(columns, len(more), grain)
        use = np.array([*circuit.network.capacities, *[inf] * len(more)])
        price = np.array([*(at[1] / grain), *more])
        bounds = LabelBounds(price, (reach + paid) / grain + 1, _LABELS, until, use, most_work)
        try:
            listing = enumerate_labels(rounded, bounds, (rounded.root,))
        except (TooManyError, OutOfTimeError):
            check_clock(until)
            share *= _LESS
        else:
            known = _best(circuit, listing, len(more), grain, known, reach)
    return known


def _rounded(circuit: Circuit, columns: int, grain: int) -> Circuit:
    """The circuit with the last columns of use in whole numbers of a grain, rounded down, constants all at once."""
    rest = np.zeros(columns)  # of constants

    def rounded(f: Factor) -> Factor:
        assert f.use is not None
        use = f.use.copy()
        own = use[..., -columns:]
        if f.time.size == 1:
            own += rest
            rest[:] = own.reshape(-1) % grain
        own //= grain
        return replace(f, use=use)

    return with_factors(circuit, circuit.network.capacities, list(map(rounded, circuit.factors)))


def _best(circuit: Circuit, listing: Listing, columns: int, grain: int, known: Found, reach: float) -> Found:
    """`known`, improved by the best label of a listing of the solutions up to `reach`."""
    labels = listing.slots[listing.circuit.root]
    if not len(labels):  # no solution is cheaper
        return replace(known, bound=max(known.bound, float(floor(reach))))
    totals = labels.time + labels.use[:, -columns:].max(axis=1)
    best = int(totals.argmin())
    known = replace(known, bound=max(known.bound, min(float(floor(reach)), float(totals[best]) * grain)))
    cost, options = descended(circuit, listing.decode(best))
    return replace(known, cost=cost, options=options) if cost < known.cost else known
