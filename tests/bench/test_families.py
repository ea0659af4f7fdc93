"""Random families of networks: their sizes, widths and tightness are what their names say."""

from __future__ import annotations

from itertools import product

import networkx as nx
import pytest

from partita.bench.families import SHAPES, TIGHTNESS, Family, network
from partita.bench.instances import FAMILIES, SMALL_FAMILIES
from partita.formulation.network.checks import check_network
from partita.formulation.network.network import Network, evaluate
from partita.formulation.network.network_file import network_json

from ..levels import some


@pytest.mark.parametrize("shape", some(SHAPES))
@pytest.mark.parametrize("tightness", TIGHTNESS)
@pytest.mark.parametrize("capacities", [1, 3])
def test_a_family_s_members_are_feasible_unless_they_are_not_to_be(shape: str, tightness: str, capacities: int) -> None:
    for seed in range(15):
        member = network(Family(shape, 6, 2, 3, tightness, capacities, seed))
        check_network(member)
        assert len(member.capacities) == (0 if tightness == "none" else capacities)
        best = least(member)
        assert (best is None) == (tightness == "infeasible")


def test_infeasible_members_do_not_show_it_variable_by_variable() -> None:
    members = [network(family) for family in FAMILIES if family.tightness == "infeasible"]
    assert len(members) == 10
    for member in members:
        assert (sum(v.use.min(axis=0) for v in member.variables) <= member.capacities).all()


def least(network: Network) -> int | None:
    """The cost of the best assignment by trying all; None where there is none."""
    verdicts = (evaluate(network, choice) for choice in product(*(range(len(v.cost)) for v in network.variables)))
    return min((verdict.cost for verdict in verdicts if verdict.feasible), default=None)


def test_a_tighter_capacity_is_never_larger() -> None:
    for seed in range(20):
        members = [network(Family("grid", 12, 3, 4, tightness, 1, seed)) for tightness in ("tight", "loose")]
        assert all(len(member.capacities) == 1 for member in members)
        assert sum(len(m.edges) for m in members) == 2 * 17


def test_families_are_the_same_every_time_and_differ_by_seed() -> None:
    family = SMALL_FAMILIES[0]
    once, again, other = (network_json(network(f)) for f in (family, family, Family("grid", 6, 2, 3, "tight", seed=1)))
    assert once == again != other
    assert len({f.name for f in FAMILIES}) == len(FAMILIES)


@pytest.mark.parametrize(("shape", "edges"), [("grid", 5 * 3 + 4 * 4), ("tree", 6 + 16 * 3), ("chords", None)])
def test_shapes_have_their_width(shape: str, edges: int | None) -> None:
    from networkx.algorithms.approximation import treewidth_min_fill_in

    width = {"grid": 4, "tree": 3, "chords": 4}[shape]
    member = network(Family(shape, 20, width, 2, "none"))
    graph = nx.Graph([(e.u, e.v) for e in member.edges])
    assert graph.number_of_edges() == len(member.edges)
    assert nx.is_connected(graph) and len(graph) == 20
    assert edges is None or len(member.edges) == edges
    assert treewidth_min_fill_in(graph)[0] <= width
