"""The whole graph that consecutive stages make up, each of which may have been rewritten by itself."""

from collections.abc import Sequence
from dataclasses import replace

from .pcg import PCG, Node
from .verification import verify

_OF_STAGES = ("atoms", "ends", "stages")
"""Attributes that a node of a stage has because of other stages."""


def rejoined(stages: Sequence[PCG]) -> tuple[PCG, tuple[tuple[int, ...], ...]]:
    """The graph of which these are the stages, and the index there of every node of each.

    What a stage receives is what one before it sends. Equal nodes of several stages are one, as weights that they share
    and constants that each computes for itself; different nodes of the same name are renamed.
    """
    made = _Whole()
    places = tuple(map(made.add, stages))
    last = stages[-1]
    aliases = tuple(dict.fromkeys(pair for graph in stages for pair in graph.aliases))
    whole = PCG(tuple(made.nodes), places[-1][last.loss], last.batch, aliases, tuple(made.samples))
    verify(whole)
    return whole, places


class _Whole:
    """The nodes so far, with the dims that count samples if the stages say so."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.samples: list[tuple[int, ...]] = []
        self._index: dict[Node, int] = {}  # by node without what it has of stages
        self._names: set[str] = set()
        self._sent: dict[str, int] = {}  # by name

    def add(self, graph: PCG) -> tuple[int, ...]:
        """Add the nodes of a stage; the index of each."""
        here: list[int] = []
        factors = {graph.nodes[i].inputs[0]: graph.nodes[i]["atoms"] for i in graph.sends}
        for index, node in enumerate(graph.nodes):
            if node.op == "receive":
                here.append(self._sent[node["peer"]])
            elif node.op == "send":
                here.append(here[node.inputs[0]])
                self._sent[node["peer"]] = here[-1]
            else:
                given = replace(node, inputs=tuple(here[i] for i in node.inputs))
                here.append(self._node(given, factors.get(index)))
                self.samples += graph.samples[index : index + 1][: len(self.nodes) - len(self.samples)]
        return tuple(here)

    def _node(self, node: Node, factors: object) -> int:
        """The index of a node; `factors` are the atoms that the stages agree on if it is sent."""
        own = tuple(pair for pair in node.attributes if pair[0] not in _OF_STAGES)
        plain = replace(node, attributes=own)
        if plain in self._index:
            return self._index[plain]
        name, number = node.name, 1
        while name in self._names:
            number += 1
            name = f"{node.name} {number}"
        agreed = factors or node.get("atoms")
        more = (("atoms", agreed),) if agreed else ()
        self._names.add(name)
        self._index[plain] = len(self.nodes)
        self.nodes.append(replace(plain, name=name, attributes=tuple(sorted((*own, *more)))))
        return len(self.nodes) - 1
