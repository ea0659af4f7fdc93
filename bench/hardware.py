"""On what a benchmark ran: processor, memory, versions."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ..solvers.executors import usable_cores

PACKAGES = ("partita", "torch", "numpy", "numba", "ortools")


def hardware() -> dict[str, Any]:
    """Processor, usable cores, memory in GiB, and the versions of what the time goes into."""
    found: dict[str, Any] = {"cpu": _processor(), "cores": usable_cores(), "memory_gib": _memory_gib()}
    found["python"] = platform.python_version()
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    return found


def _memory_gib() -> int | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)
    except (AttributeError, OSError, ValueError):  # a platform that does not say
        return None


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
