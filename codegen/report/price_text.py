"""A priced configuration as text, beside the planner's own plan."""

from collections.abc import Mapping, Sequence
from typing import Any

from ...model.sizes import bytes_text

_WORDS = {
    "compute": "kernels",
    "conversions": "messages of activations",
    "weights": "gathering of weights",
    "gradients": "gradients and update",
    "hidden": "hidden behind kernels",
    "host": "waiting for the host",
    "pipeline": "waiting of the pipeline",
}


def price_text(result: Mapping[str, Any]) -> str:
    """Lines for a terminal."""
    priced, free = result["priced"], result["planned"]
    columns = [("this", priced)] + ([("planner's own", free)] if free else [])
    rows: list[Sequence[str]] = [("", *(name for name, _ in columns))]
    rows.append(("step", *(f"{own['step_ns'] / 1e6:,.2f} ms" for _, own in columns)))
    rows.append(("memory", *(bytes_text(own["memory_bytes"]) for _, own in columns)))
    rows.append(("stages x micro-batches", *(f"{own['stages']} x {own['micro_batches']}" for _, own in columns)))
    if any(own["schedule"] for _, own in columns):
        rows.append(("schedule", *(own["schedule"] or "-" for _, own in columns)))
    for part, words in _WORDS.items():
        if any(own["parts_ns"][part] for _, own in columns):
            rows.append((f"  {words}", *(f"{own['parts_ns'][part] / 1e6:z,.2f} ms" for _, own in columns)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        f"{result['model']} on {result['devices']} devices of {result['machine']}: {result['configuration']}",
        "",
        *(
            "  ".join([f"{row[0]:<{widths[0]}}", *(f"{x:>{w}}" for x, w in zip(row[1:], widths[1:], strict=True))])
            for row in rows
        ),
        "",
        f"Limited by {_WORDS[priced['limit']]}, on the busiest stage.",
    ]
    if not priced["fits"]:
        lines.append(f"It does not fit: a device has {bytes_text(priced['capacity_bytes'])} for a plan.")
    if free and not free["fits"]:
        lines.append("The planner's own plan does not fit.")
    if free:
        lines.append(f"The planner's own plan takes {free['step_ns'] / priced['step_ns']:.2f} of its time.")
    return "\n".join(lines)
