"""What a profile measures: of the device, of its links, and of the kernels of plans."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from ...formulation.placement.placement import divisors
from .kernels import Kernel

ELEMENTS = {"cpu": 1 << 22, "cuda": 1 << 27}
PAYLOADS = (4, 1 << 14, 1 << 17, 1 << 20, 1 << 22, 25_000_000)
BESIDE_BYTES = 1 << 22
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send")
HOST = {"what": "host"}
ROUNDS = 3
"""How often everything is measured, one round after another."""
DTYPES = ("float32", "bfloat16", "float64", "float16")


def device_cases(ranks: int, device: str) -> Iterator[dict[str, Any]]:
    """What is measured of a machine with so many ranks, whatever the model."""
    yield {"what": "resting"}  # before anything else takes memory
    for dtype in DTYPES:
        yield {"what": "product", "dtype": dtype}
    yield {"what": "update", "elements": ELEMENTS[device]}
    yield {"what": "launch"}
    yield {"what": "step"}
    if device != "cpu":  # whose host is the device
        yield {"what": "host_copy", "bytes": 1 << 24}
        yield HOST
    for group in sorted(divisors(ranks))[1:]:
        for kind in KINDS:
            for payload in PAYLOADS:
                yield {"what": "collective", "kind": kind, "group": group, "bytes": payload}
        yield {"what": "beside", "group": group, "bytes": BESIDE_BYTES}


def rounds_of(case: Mapping[str, Any]) -> int:
    """How often a case is measured: once, if earlier measurements would change its result."""
    return 1 if case["what"] in ("resting", HOST["what"]) else ROUNDS


def operator_case(kernel: Kernel) -> dict[str, Any]:
    """What is measured of a kernel, with what the cost model counts for it."""
    return {"what": "operator", **kernel.case(), "counted": kernel.counted()}


def part_of(case: Mapping[str, Any]) -> str:
    """Names what is measured, whatever the cost model counts for it."""
    given = {name: value for name, value in case.items() if name != "counted"}
    return hashlib.blake2b(json.dumps(given, sort_keys=True).encode(), digest_size=16).hexdigest()
