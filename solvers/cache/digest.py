"""32-byte digests of networks, independent of names, so that equal parts of different models share answers."""

from array import array
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from ...formulation.network.network import Network, Table
from ..protocol import Solver

_AS_NUMBERS = ("variables", "edges", "switches", "windows")  # encoded as arrays of numbers, as they are many


def digest(network: Network) -> bytes:
    """A digest of a network's tables, chains and capacities; each distinct table is read once."""
    tables = _Tables()
    number = tables.number
    variables = array("q", (number(t) for v in network.variables for t in (v.cost, v.use, v.rows)))
    edges = array("q", (x for e in network.edges for x in (e.u, e.v, number(e.cost), number(e.use))))
    switches = array("q")
    for switch in network.switches:
        switches.extend((switch.variable, len(switch.variables), len(switch.edges)))
        for part in (switch.variables, switch.edges):
            for key in sorted(part):
                switches.extend((key, *map(number, part[key])))
    windows = array("q")
    for window in network.windows:
        windows.extend((len(window.variables), len(window.edges)))
        for streams in (window.variables, window.edges):
            for key in sorted(streams):
                windows.extend((key, number(streams[key])))
    rest = {f.name: getattr(network, f.name) for f in fields(network) if f.name not in _AS_NUMBERS}
    text = repr(tables.plain(rest)).encode()
    return digest_of(
        *(numbers.tobytes() for numbers in (variables, edges, switches, windows)), text, bytes(tables.contents)
    )


class _Tables:
    """Numbers tables by content, in order of first occurrence; 0 is None."""

    def __init__(self) -> None:
        self.contents = bytearray()
        self._by_identity: dict[int, int] = {id(None): 0}
        self._by_content: dict[bytes, int] = {}

    def number(self, table: Table | None) -> int:
        found = self._by_identity.get(id(table))
        if found is not None or table is None:
            return found or 0
        content = blake2b(f"{table.dtype.str}{table.shape}".encode(), digest_size=16)
        content.update(np.ascontiguousarray(table).data)
        found = self._by_content.setdefault(content.digest(), len(self._by_content) + 1)
        if len(self.contents) < 16 * found:
            self.contents += content.digest()
        self._by_identity[id(table)] = found
        return found

    def plain(self, value: Any) -> Any:
        """A value with its tables replaced by numbers: ints, strings and tuples only."""
        if isinstance(value, np.ndarray):
            return "table", self.number(value)
        if isinstance(value, Mapping):
            return "by", tuple((key, self.plain(value[key])) for key in sorted(value))
        if isinstance(value, tuple):  # skip long tuples of ints
            return value if not value or isinstance(value[0], int) else tuple(self.plain(part) for part in value)
        if is_dataclass(value):
            return tuple(self.plain(getattr(value, f.name)) for f in fields(value))
        assert value is None or isinstance(value, int | str), value
        return value


def solve_key(solver: Solver, network: Network) -> bytes:
    """The key of the answers of this version of a solver on a network."""
    return digest_of(digest(network), solver.name, type(solver).__module__, *_versions(type(solver).__module__))


def digest_of(*parts: object) -> bytes:
    """A 32-byte digest of the parts: bytes as they are, others by `repr`."""
    content = blake2b(digest_size=32)
    for part in parts:
        raw = part if isinstance(part, bytes) else repr(part).encode()
        content.update(len(raw).to_bytes(8, "little"))
        content.update(raw)
    return content.digest()


LIBRARIES = ("numpy", "ortools", "scipy", "z3-solver")
"""Libraries whose versions may change answers."""


@cache
def _versions(module: str) -> tuple[str, ...]:
    """What may change a solver's answers: versions of its package and of libraries, and the solvers' sources."""
    package = module.partition(".")[0]
    try:
        released = version(package)
    except PackageNotFoundError:  # a checkout, or a user's own file
        released = ""
    sources = blake2b(digest_size=16)
    for path in sorted(Path(__file__).parents[1].rglob("*.py")):
        sources.update(path.read_bytes())
    return released, *map(version, LIBRARIES), sources.hexdigest()
