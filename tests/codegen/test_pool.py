"""Plans of many model families, verified on 8 processes that start once."""

from __future__ import annotations

from partita.codegen.plan import Plan
from partita.codegen.run import Settings, plan_graph
from partita.codegen.verification.verify import verify_all
from partita.model.capture import capture
from partita.model.load import load_module
from partita.model.machine import Machine
from partita.model.zoo import entry

MESHES = {"dlrm": (8,), "xdl": (2, 4), "candle-uno": (2, 2, 2), "llama-70b": (2, 4), "inception-v3": (8,)}


def planned(name: str, mesh: tuple[int, ...]) -> Plan:
    known = entry(name)
    batch = known.default_batch(True, 8)
    graph = capture(*load_module(name, small=True), batch=batch)
    settings = Settings(batch, "float32", known.optimizer, mesh=mesh)
    return plan_graph(graph, Machine.adhoc(mesh), settings, {"reference": name, "small": True, "batch": batch})


def test_one_launch_verifies_the_families() -> None:
    plans = [planned(name, mesh) for name, mesh in MESHES.items()]
    for name, verdict in zip(MESHES, verify_all(plans), strict=True):
        assert verdict["ok"], (name, verdict.get("failure"))
        assert (verdict["level"], verdict["ranks"]) == ("pool", 8)
