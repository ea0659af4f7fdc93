"""What `partita profile` measured, as text."""

from collections.abc import Mapping
from typing import Any


def profile_text(result: Mapping[str, Any]) -> str:
    """Lines for a terminal."""
    peaks = ", ".join(f"{rate / 1e9:,.1f} in {dtype}" for dtype, rate in result["peak"].items())
    lines = [
        f"{result['measured']} measurements made, {result['known']} in all; repeats differ by {result['spread']:.1%}.",
        "",
        f"products       {peaks} GFLOP/s",
        f"memory         {result['memory_bandwidth'] / 1e9:,.2f} GB/s, as an update of AdamW moves it",
        f"launch         {result['launch_ns'] / 1e3:,.2f} us",
    ]
    if result["collectives"]:
        errors = ", ".join(f"{kind} {error:.0%}" for kind, error in result["collectives"].items())
        lines.append(f"links          {result['bandwidth'] / 1e9:,.2f} GB/s, {result['latency_ns'] / 1e3:,.1f} us")
        lines.append(f"               median errors of the fit: {errors}")
    known = {of: row for of, row in result["kernels"].items() if row["error"] is not None}
    if known:
        lines += ["", "Kernels: shapes measured, and the median error of interpolating one from the others"]
        width = max(map(len, known))
        lines += [f"  {of:<{width}}  {row['points']:>4}  {row['error']:>5.0%}" for of, row in known.items()]
    if result["not_measured"]:
        lines += [
            "",
            f"By the roofline alone, as they cannot be run by themselves: {', '.join(result['not_measured'])}",
        ]
    return "\n".join([*lines, "", f"Machine file: {result['file']}"])
