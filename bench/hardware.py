"""On what a benchmark ran: processor, memory, versions; and what its host needs for a call of PyTorch."""

import json
import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from ..codegen.profile.local import processor
from ..solvers.executors import usable_cores

PACKAGES = ("partita", "torch", "numpy", "numba", "ortools")


def hardware() -> dict[str, Any]:
    """Processor, usable cores, memory in GiB, and the versions of what the time goes into."""
    found: dict[str, Any] = {"cpu": processor(), "cores": usable_cores(), "memory_gib": _memory_gib()}
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


if __name__ == "__main__":
    from ..codegen.profile.host import host_calls

    print(json.dumps({"hardware": hardware(), "host": host_calls((*sys.argv[1:], "cpu")[0])}, indent=2))
