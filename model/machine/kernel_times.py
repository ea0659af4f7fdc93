"""Measured times of kernels: how far an operator is from the roofline, by its arithmetic and its memory traffic.

A machine file has them where `partita profile` measured them. Between measurements the ratio to the roofline is
interpolated, weighted by distance in the plane of (log FLOPs, log bytes); it is exact at a measured point and stays
between the least and the greatest ratio, so that bounds can take the least.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..json_values import number, title

Floats = npt.NDArray[np.float64]

PHASES = ("forward", "backward")
MOST_NS = 1e15  # twelve days
_POWER = 3  # of the squared distance: a point twice as far weighs a 64th
_HERE = 1e-9  # squared distance at which a measured point decides alone
_BLOCK = 1 << 20  # distances in memory at once


@dataclass(frozen=True, slots=True)
class KernelTimes:
    """An operator's kernels in one dtype and phase: `points` are (FLOPs, bytes, kernels, measured ns).

    FLOPs, bytes and kernels are those that the cost model counts for the call that was measured.
    """

    op: str
    dtype: str
    phase: str
    points: tuple[tuple[float, float, float, float], ...]

    def to_json(self) -> dict[str, Any]:
        return {"op": self.op, "dtype": self.dtype, "phase": self.phase, "points": [list(p) for p in self.points]}

    @classmethod
    def from_json(cls, data: Any) -> KernelTimes:
        """The inverse of `to_json`. Raises KeyError, TypeError or ValueError for malformed data."""
        points = tuple(tuple(map(number, point)) for point in data["points"])
        times = cls(title(data["op"]), title(data["dtype"]), title(data["phase"]), points)  # type: ignore[arg-type]
        times.check()
        return times

    def check(self) -> None:
        """ValueError: no points, a point without four numbers, a negative count, or a time that is not positive."""
        if self.phase not in PHASES:
            raise ValueError(f"{self.phase!r:.60} is no phase of a kernel (known: {', '.join(PHASES)})")
        if not self.points:
            raise ValueError(f"kernel times of {self.op} without points")
        for point in self.points:
            if len(point) != 4 or min(point[:3]) < 0 or not sum(point[:3]) or not 0 < point[3] <= MOST_NS:
                raise ValueError(f"{list(point)!r:.60} is no point of kernel times: FLOPs, bytes, kernels, ns")


@dataclass(frozen=True)
class Ratios:
    """Measured by roofline times of one operator: [points] logarithms of FLOPs, of bytes, and of the ratio."""

    flops: Floats
    size_bytes: Floats
    ratio: Floats

    @property
    def least(self) -> float:
        """The least ratio, of which no interpolation is below."""
        return float(np.exp(self.ratio.min()))

    def at(self, flops: Floats, size_bytes: Floats) -> Floats:
        """The ratio at each of [n] places."""
        places, inverse = np.unique(np.log1p(flops) + 1j * np.log1p(size_bytes), return_inverse=True)
        step = max(_BLOCK // len(self.ratio), 1)
        found = [self._near(places[start : start + step]) for start in range(0, len(places), step)]
        ratios: Floats = np.exp(np.concatenate(found))[inverse.reshape(-1)]
        return ratios

    def _near(self, places: npt.NDArray[np.complex128]) -> Floats:
        apart = (places.real[:, None] - self.flops) ** 2 + (places.imag[:, None] - self.size_bytes) ** 2
        weights = (apart + _HERE) ** -_POWER
        mean: Floats = (weights * self.ratio).sum(axis=1) / weights.sum(axis=1)
        return np.clip(mean, self.ratio.min(), self.ratio.max())

    def leave_one_out(self) -> Floats:
        """[points]: each point's ratio as interpolated from the others, by its own; nothing for a single point."""
        if len(self.ratio) < 2:
            return np.zeros(0)
        places, every = self.flops + 1j * self.size_bytes, np.arange(len(self.ratio))
        others = [Ratios(*(part[every != k] for part in (self.flops, self.size_bytes, self.ratio))) for k in every]
        found = [o._near(places[k : k + 1])[0] - self.ratio[k] for k, o in enumerate(others)]
        errors: Floats = np.exp(np.array(found))
        return errors
