"""The file of a cost network: plain lists and numbers, equal tables stored once."""

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import numpy as np

from ...model.errors import PartitaError
from .checks import check_network
from .network import INFINITE, Chain, Edge, Network, Switch, SwitchTables, Table, Variable, Window

_T = TypeVar("_T")


def network_json(network: Network) -> dict[str, Any]:
    """A dict of plain lists and numbers; forbidden costs are None, and a variable without `rows` has none."""
    tables = _Tables()
    data: dict[str, Any] = {
        "format": "partita-network",
        "version": 1,
        "constant": int(network.constant),
        "capacities": [int(c) for c in network.capacities],
        "variables": [
            {"name": v.name} | tables.named(v.cost, v.use) | ({} if v.rows is None else {"rows": v.rows.tolist()})
            for v in network.variables
        ],
        "edges": [{"u": int(e.u), "v": int(e.v)} | tables.named(e.cost, e.use) for e in network.edges],
        "chains": [
            {"boundaries": [int(b) for b in c.boundaries], "copies": [[int(v) for v in copy] for copy in c.copies]}
            | ({"reads": [int(v) for v in c.reads]} if c.reads else {})
            for c in network.chains
        ],
    }
    if network.switches:
        data["switches"] = [
            {"variable": int(s.variable)}
            | {
                kind: [{"of": int(k)} | tables.named(*decided) for k, decided in part.items()]
                for kind, part in (("variables", s.variables), ("edges", s.edges))
            }
            for s in network.switches
        ]
    if network.windows:
        data["windows"] = [
            {
                kind: [{"of": int(k)} | tables.streams(table) for k, table in part.items()]
                for kind, part in (("variables", window.variables), ("edges", window.edges))
            }
            for window in network.windows
        ]
    return data | {"tables": tables.rows}


def read_network(data: Mapping[str, Any]) -> Network:
    """The network that `network_json` wrote; raises PartitaError that names the fault and its place."""
    if not isinstance(data, Mapping) or data.get("format") != "partita-network":
        raise PartitaError('not a cost network: expected an object with "format": "partita-network"')
    if data.get("version") != 1:
        raise PartitaError(f"cost network of version {data.get('version')!r}; this reads version 1")
    tables = [_read_table(row, f"tables[{i}]") for i, row in enumerate(_list(data, "tables", ""))]
    variables = tuple(
        Variable(
            _field(v, "name", str, at),
            _table(tables, v, "cost", at),
            _table(tables, v, "use", at),
            None if v.get("rows") is None else _read_rows(v, at),
        )
        for v, at in _objects(data, "variables")
    )
    edges = tuple(
        Edge(
            _field(e, "u", int, at),
            _field(e, "v", int, at),
            _table(tables, e, "cost", at),
            _optional_table(tables, e, "use", at),
        )
        for e, at in _objects(data, "edges")
    )
    chains = tuple(
        Chain(
            _integers(_list(c, "boundaries", at), f"{at}.boundaries"),
            tuple(_integers(copy, f"{at}.copies[{i}]") for i, copy in enumerate(_list(c, "copies", at))),
            _integers(_list(c, "reads", at), f"{at}.reads") if "reads" in c else (),
        )
        for c, at in _objects(data, "chains")
    )
    switches = tuple(
        Switch(_field(s, "variable", int, at), *(_read_modes(tables, s, key, at) for key in ("variables", "edges")))
        for s, at in (_objects(data, "switches") if "switches" in data else ())
    )
    windows = tuple(
        Window(*(_read_streams(tables, w, key, at) for key in ("variables", "edges")))
        for w, at in (_objects(data, "windows") if "windows" in data else ())
    )
    capacities = _integers(_list(data, "capacities", ""), "capacities")
    network = Network(
        variables, edges, capacities, _field(data, "constant", int, ""), chains, switches, windows=windows
    )
    try:
        check_network(network)
    except ValueError as error:
        raise PartitaError(f"inconsistent cost network: {error}") from None
    return network


def _read_modes(tables: list[Table], switch: Mapping[str, Any], key: str, at: str) -> dict[int, SwitchTables]:
    """The tables of the variables, or edges, of a switch, by their numbers."""
    return {
        _field(part, "of", int, place): (
            _table(tables, part, "cost", place),
            _optional_table(tables, part, "use", place),
            _optional_table(tables, part, "extra", place),
        )
        for part, inside in _objects(switch, key)
        for place in (f"{at}.{inside}",)
    }


def _read_streams(tables: list[Table], window: Mapping[str, Any], key: str, at: str) -> dict[int, Table]:
    """The streams of the variables, or edges, of a window, by their numbers."""
    return {
        _field(part, "of", int, f"{at}.{inside}"): _table(tables, part, "streams", f"{at}.{inside}")
        for part, inside in _objects(window, key)
    }


class _Tables:
    """Tables seen so far; equal ones share one row."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self._known: dict[tuple[bool, tuple[int, ...], bytes], int] = {}
        # Keeps the tables alive, so that their ids stay their own.
        self._by_id: dict[tuple[bool, int], tuple[int, Table]] = {}

    def named(self, cost: Table, use: Table | None, extra: Table | None = None) -> dict[str, int]:
        """The numbers of these tables, without those that are None."""
        named = ("cost", cost), ("use", use), ("extra", extra)
        return {key: self._put(table, costs=key == "cost") for key, table in named if table is not None}

    def streams(self, table: Table) -> dict[str, int]:
        """The number of a table of streams."""
        return {"streams": self._put(table)}

    def _put(self, table: Table, costs: bool = False) -> int:
        if (costs, id(table)) not in self._by_id:
            key = costs, table.shape, table.tobytes()
            if key not in self._known:
                values = [None if costs and x >= INFINITE else x for x in table.ravel().tolist()]
                self._known[key] = len(self.rows)
                self.rows.append({"shape": list(table.shape), "values": values})
            self._by_id[costs, id(table)] = self._known[key], table
        return self._by_id[costs, id(table)][0]


def _list(data: Any, key: str, at: str) -> list[Any]:
    return _field(data, key, list, at)


def _field(data: Any, key: str, kind: type[_T], at: str) -> _T:
    place = f"{at}.{key}".lstrip(".")
    if not isinstance(data, Mapping) or key not in data:
        raise PartitaError(f"cost network: {place} is missing")
    value = data[key]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise PartitaError(f"cost network: {place} is {_short(value)}, expected {kind.__name__}")
    return value


def _objects(data: Mapping[str, Any], key: str) -> Iterator[tuple[dict[str, Any], str]]:
    for i, value in enumerate(_list(data, key, "")):
        if not isinstance(value, dict):
            raise PartitaError(f"cost network: {key}[{i}] is {_short(value)}, expected an object")
        yield value, f"{key}[{i}]"


def _integers(values: Any, at: str) -> tuple[int, ...]:
    if not isinstance(values, list):
        raise PartitaError(f"cost network: {at} is {_short(values)}, expected a list")
    for i, x in enumerate(values):
        if not isinstance(x, int) or isinstance(x, bool):
            raise PartitaError(f"cost network: {at}[{i}] is {_short(x)}, expected an integer")
    return tuple(values)


def _read_table(row: Any, at: str) -> Table:
    shape, values = _integers(_list(row, "shape", at), f"{at}.shape"), _list(row, "values", at)
    filled = _integers([INFINITE if x is None else x for x in values], f"{at}.values")
    try:
        return np.array(filled, dtype=np.int64).reshape(shape)
    except (ValueError, OverflowError) as error:
        raise PartitaError(f"cost network: {at}: {error}") from None


def _read_rows(variable: Mapping[str, Any], at: str) -> Table:
    rows = [_integers(row, f"{at}.rows[{p}]") for p, row in enumerate(_list(variable, "rows", at))]
    for p, row in enumerate(rows):
        if len(row) != 2 or not all(0 <= r < 1 << 63 for r in row):
            raise PartitaError(f"cost network: {at}.rows[{p}] is {_short(list(row))}, expected a first and a last row")
    return np.array(rows, np.int64).reshape(-1, 2)


def _table(tables: list[Table], data: Mapping[str, Any], key: str, at: str) -> Table:
    index = _field(data, key, int, at)
    if not 0 <= index < len(tables):
        raise PartitaError(f"cost network: {at}.{key} is table {index} of {len(tables)}")
    return tables[index]


def _optional_table(tables: list[Table], data: Mapping[str, Any], key: str, at: str) -> Table | None:
    return None if data.get(key) is None else _table(tables, data, key, at)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
