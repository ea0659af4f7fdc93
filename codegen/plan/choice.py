"""The choice for one node of a plan, and its JSON."""

from dataclasses import dataclass, replace
from typing import Any

from ...formulation.bundles.bundles import batch_row
from ...formulation.strategies.strategy import rows
from ...model.graph.atoms import Atoms, atoms
from ...model.graph.layout import B, Layout, P, R, S, atom_of, is_split
from ...model.graph.pcg import PCG
from ...model.json_values import whole

FLAGS = ("regather", "sharded_states", "sharded_gradients", "offloaded")
"""Flags of parameters; a file lists those that are set."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What a plan does with one node.

    `inputs` are the layouts in which the operator needs its inputs, `output` the one that it produces. A tensor with
    `shared` is converted once from `output` to `shared`, and from there for each consumer. `regather`: the converted
    weight is not kept for backward but converted again there. `sharded_states`: optimizer states of a weight are split
    over the axes on which it is stored at B (ZeRO-1), with `sharded_gradients` its accumulated gradient too (ZeRO-2).
    `offloaded`: the states are in the host's memory between updates. `beside`: the node or weight is only at one
    coordinate of an axis, (axis, coordinate), in parallel with the other branches of a bundle; nested bundles add more.
    `joins`: of the node that joins branches (axis, *coordinates of the branches); `shares`: how many coordinates each
    branch has from there on, over which it splits its samples (empty: one each). `at`: of tables that are spread over
    the axis at P, pieces: (name of the table, first column, the one after the last, coordinate).
    """

    inputs: tuple[Layout, ...]
    output: Layout
    shared: Layout | None = None
    regather: bool = False
    sharded_states: bool = False
    sharded_gradients: bool = False
    offloaded: bool = False
    beside: tuple[tuple[int, int], ...] = ()
    joins: tuple[int, ...] = ()
    shares: tuple[int, ...] = ()
    at: tuple[tuple[str, int, int, int], ...] = ()

    @property
    def alone(self) -> tuple[int, ...]:
        """The axes on which the node is at one coordinate only."""
        return tuple(axis for axis, _ in self.beside)

    @property
    def given(self) -> Layout:
        """The layout from which consumers convert."""
        return self.output if self.shared is None else self.shared


def joined_choice(graph: PCG, join: int, choice: Choice, axis: int) -> Choice:
    """The choice of a node that joins a bundle over an axis as if it read its output's layout: its work costs this."""
    found = rows(graph, join)
    if choice.output[axis] == P:
        return replace(choice, inputs=tuple((*x[:axis], P, *x[axis + 1 :]) for x in choice.inputs))
    number = batch_row(graph, join) if is_split(choice.output[axis]) else 0
    assert number is not None
    letters = found[number].inputs
    inputs = tuple((*x[:axis], w, *x[axis + 1 :]) for x, w in zip(choice.inputs, letters, strict=True))
    return replace(choice, inputs=inputs)


def letter_text(known: Atoms, letter: int) -> str:
    """`R`, `B`, `P`, `S(1)`, or `S(1.0)` where dim 1 is a product of atoms and its outermost is split."""
    if not is_split(letter):
        return "RBP"[letter]
    dim, position = known.dim_of(atom_of(letter))
    return f"S({dim}.{position})" if len(known.dims[dim]) > 1 else f"S({dim})"


def _letter(known: Atoms, text: Any) -> int:
    if text in ("R", "B", "P"):
        return {"R": R, "B": B, "P": P}[text]
    for a in range(len(known.sizes)):
        if text == letter_text(known, S(a)):
            return S(a)
    raise ValueError(f"{text!r} is no letter of a tensor with dims {known.dims}")


def choice_json(graph: PCG, index: int, choice: Choice) -> dict[str, Any]:
    """The choice of a node as JSON."""
    node, known = graph.nodes[index], atoms(graph)

    def text(i: int, layout: Layout) -> list[str]:
        return [letter_text(known[i], x) for x in layout]

    result: dict[str, Any] = {
        "inputs": [text(i, x) for i, x in zip(node.inputs, choice.inputs, strict=True)],
        "output": text(index, choice.output),
    }
    if choice.shared is not None:
        result["shared"] = text(index, choice.shared)
    for flag in FLAGS:
        if getattr(choice, flag):
            result[flag] = True
    if choice.beside:
        result["beside"] = [list(pair) for pair in choice.beside]
    if choice.joins:
        result["joins"] = list(choice.joins)
    if choice.shares:
        result["shares"] = list(choice.shares)
    if choice.at:
        result["at"] = [list(piece) for piece in choice.at]
    return result


def read_choice(graph: PCG, index: int, data: Any) -> Choice:
    """The choice of a node from `choice_json`. Raises ValueError, TypeError or KeyError if it is malformed."""
    node, known = graph.nodes[index], atoms(graph)

    def layout(i: int, letters: Any) -> Layout:
        return tuple(_letter(known[i], x) for x in as_list(letters))

    extra = sorted(data.keys() - {"inputs", "output", "shared", *FLAGS, "beside", "joins", "shares", "at"})
    if extra:
        raise ValueError(f"{extra[0]!r} is not a field of a choice")
    inputs = as_list(data["inputs"])
    if len(inputs) != len(node.inputs):
        raise ValueError(f"{len(inputs)} input layouts for {len(node.inputs)} inputs")
    flags = {flag: data.get(flag, False) for flag in FLAGS}
    if not all(isinstance(value, bool) for value in flags.values()):
        raise ValueError(f"{flags} are not all true or false")
    pairs = [as_list(pair) for pair in as_list(data.get("beside", []))]
    return Choice(
        tuple(layout(i, letters) for i, letters in zip(node.inputs, inputs, strict=True)),
        layout(index, data["output"]),
        layout(index, data["shared"]) if "shared" in data else None,
        beside=tuple((whole(axis), whole(coordinate)) for axis, coordinate in pairs),
        joins=tuple(whole(x) for x in as_list(data.get("joins", []))),
        shares=tuple(whole(x) for x in as_list(data.get("shares", []))),
        at=tuple(_piece(*as_list(piece)) for piece in as_list(data.get("at", []))),
        **flags,
    )


def _piece(name: Any, start: Any, stop: Any, coordinate: Any) -> tuple[str, int, int, int]:
    return str(name), whole(start), whole(stop), whole(coordinate)


def as_list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{value!r:.60} is not a list")
    return value
