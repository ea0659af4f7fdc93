"""Several devices of a machine as one that is no slower than they are together: for lower bounds."""

from dataclasses import replace

from .kernel_times import KernelTimes
from .machine import Device, Level, Machine
from .measured_kernels import least_ratio

ALONE = Level("device", 1, 1.0, 0.0)
"""The level of a machine with one device: nothing is sent on it."""


def merged_device(machine: Machine, devices: int, launches: bool = True) -> Machine:
    """A machine of one device with the compute, bandwidth and memory of `devices` of the machine's devices.

    It launches kernels as fast as one of them, or in no time, host and device, without `launches`. Of measured kernels
    it takes the least ratio to the roofline, so that it is no slower than the devices are together.
    """
    one = machine.device
    host = None if one.host_bandwidth is None else one.host_bandwidth * devices
    device = replace(
        one,
        memory_bytes=one.reserved_bytes + devices * one.capacity_bytes,
        memory_bandwidth=one.memory_bandwidth * devices,
        peak={dtype: rate * devices for dtype, rate in one.peak.items()},
        host_bandwidth=host,
        launch_ns=one.launch_ns if launches else 0.0,
        host_ns=one.host_ns if launches else 0,
    )
    device = replace(device, kernels=tuple(_least(times, one, device) for times in one.kernels))
    return replace(machine, name=f"{devices} devices of {machine.name} as one", levels=(ALONE,), device=device)


def _least(times: KernelTimes, one: Device, merged: Device) -> KernelTimes:
    """Kernel times of a merged device whose only ratio is the least that was measured on one."""
    ns = 1e9 * least_ratio(one, times.op, times.dtype, times.phase)
    return replace(times, points=((0.0, merged.memory_bandwidth, 0.0, ns),))
