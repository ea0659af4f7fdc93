"""A device's measured kernels against its roofline."""

from functools import lru_cache

import numpy as np

from .kernel_times import Floats, Ratios
from .machine import Device


@lru_cache(maxsize=1024)
def ratios_of(device: Device, op: str, dtype: str, phase: str) -> Ratios | None:
    """What was measured of an operator against the device's roofline; None: nothing."""
    for times in device.kernels:
        if (times.op, times.dtype, times.phase) == (op, dtype, phase):
            flops, size_bytes, kernels, ns = np.array(times.points).T
            roofline = roofline_ns(device, dtype, flops, size_bytes, kernels)
            return Ratios(np.log1p(flops), np.log1p(size_bytes), np.log(ns) - np.log(roofline))
    return None


def roofline_ns(device: Device, dtype: str, flops: Floats, size_bytes: Floats, kernels: Floats | float) -> Floats:
    """The longer of arithmetic and memory traffic, and the launches."""
    busy: Floats = np.maximum(flops / device.flops(dtype), size_bytes / device.memory_bandwidth) * 1e9
    return busy + kernels * device.launch_ns


@lru_cache(maxsize=1 << 14)
def measured_ratio(device: Device, of: tuple[str, str, str], flops: float, size_bytes: float) -> float:
    """The interpolated ratio for a kernel `of` an operator, in a dtype and phase; 1 where nothing was measured."""
    known = ratios_of(device, *of) if device.kernels else None
    return 1.0 if known is None else float(known.at(np.array([flops]), np.array([size_bytes]))[0])


def least_ratio(device: Device, op: str, dtype: str, phase: str) -> float:
    """The least ratio of an operator's measured to roofline times; 1 where nothing was measured."""
    known = ratios_of(device, op, dtype, phase) if device.kernels else None
    return 1.0 if known is None else known.least
