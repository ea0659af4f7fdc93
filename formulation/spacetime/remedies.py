"""Changes to a hand-written plan that lower its peak, made with the primitives that a plan is written with.

Each changes a copy of the plan's graph and says what it did; what it saves is what the copy is then predicted to take.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TypeAlias

from .graph import Graph, Order
from .mask import whole
from .names import layer_in, pattern
from .op import Op, Phase
from .peak import Label, micro_batches
from .primitives import op_assign, op_order, op_trans, place, recompute, swap
from .stages import evenly
from .tasks import Tasks
from .transformation import Replicate, Transformation, candidates, split

SHARDS = 4
"""Parts of a layer's heads and hidden units in a co-shard."""

_Factor: TypeAlias = tuple[str, int, int]
"""A factor of a dim of a named weight, as `split` takes it."""

Change: TypeAlias = Callable[[Graph], str]
"""Changes a graph in place and says how; empty if there is nothing to change. PartitaError: it cannot be done."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """Changes of one sort, the mildest first; remedies of one `sort` exclude each other. `frees`: kinds of `MEMORY`."""

    sort: str
    frees: frozenset[str]
    changes: tuple[Change, ...]


def remedies(tasks: Tasks, devices: Sequence[int], in_flight: int) -> tuple[Remedy, ...]:
    """What may lower the peaks of some devices, in the order in which several are made together.

    `in_flight`: the most micro-batches that one of the devices has in flight.
    """
    held, kept = frozenset({"activations", "transients"}), frozenset({"weights", "states", "gradients"})
    fewer = [most for most in dict.fromkeys((in_flight // 2, in_flight // 4, 1)) if 0 < most < in_flight]
    return (
        Remedy("parameters", frozenset({"states"}), (partial(_states_split, tasks=tasks),)),
        Remedy("parameters", kept, (partial(_weights_split, tasks=tasks),)),
        Remedy("states", frozenset({"states"}), (_states_on_host,)),
        Remedy("samples", held, tuple(partial(_in_flight, most=most) for most in fewer)),
        Remedy("samples", held, tuple(partial(_accumulated, count=count) for count in (2, 4, 8) if not in_flight)),
        Remedy("layers", held, (partial(recomputed, devices=devices),)),
        Remedy("layers", held, (partial(co_sharded, devices=devices),)),
        Remedy("layers", held, (partial(_swapped, devices=devices),)),
    )


# Activations


def recomputed(graph: Graph, *, devices: Collection[int]) -> str:
    """Activation checkpointing of layers."""
    groups = _layers(graph, devices)
    for ops in groups:
        recompute(ops)
    return f"recompute() each of {_named(groups)}" if groups else ""


def _swapped(graph: Graph, *, devices: Collection[int]) -> str:
    groups = _layers(graph, devices)
    for ops in groups:
        swap(ops)
    return f"swap() what each of {_named(groups)} keeps" if groups else ""


def _layers(graph: Graph, devices: Collection[int]) -> list[list[Op]]:
    """The operators of layers that are neither recomputed nor swapped, of one device and micro-batch each."""
    labels = {device: micro_batches(graph.forward, device) for device in devices}
    found: dict[object, list[Op]] = defaultdict(list)
    for op in graph.forward:
        if op.device in labels and op.layer and op.group is None and op.swapped is None:
            micro = tuple(op.labels[label].number for label in labels[op.device])
            found[op.device, op.layer, micro].append(op)
    return list(found.values())


def _named(groups: Sequence[Sequence[Op]]) -> str:
    layers = {ops[0].layer for ops in groups}
    names = list(dict.fromkeys(map(pattern, (f"{layer}." for layer in layers))))
    shown = ", ".join(sorted(name.removesuffix(".") for name in names))
    return f"the {len(layers)} layers ({shown})" if len(layers) > 1 else f"layer {next(iter(layers))}"


# Co-shard


def co_sharded(graph: Graph, *, devices: Collection[int]) -> str:
    """Heads and hidden units of layers in parts on their device, recomputed one after the other (Figure 3)."""
    dims = _dims_of_layers(graph)
    parts, names = dict[Op, list[Op]](), set[str]()
    blocks: list[tuple[list[Op], list[list[Op]]]] = []
    for group in _layers(graph, devices):
        for dim, nodes in dims.get(group[0].layer, ()):
            sharded = [op for op in group if op.node in nodes]
            if not sharded:
                continue
            names.add(f"({pattern(str(dim[0]))!r}, {', '.join(map(str, dim[1:]))})")
            for op in sharded:
                assert op.device is not None
                parts[op] = op_trans(op, split(dim, SHARDS, "shard"))
                op_assign(parts[op], op.device)
            blocks.append((_only_read_by(graph, nodes, group), [parts[op] for op in sharded]))
    _follow(graph, parts)
    for alone, made in blocks:
        shards = list(zip(*made, strict=True))
        recompute([*alone, *(op for ops in shards for op in ops)])
        for before, after in pairwise(shards):
            op_order(before, after)
            op_order([op.backward for op in after], [op.recomputed for op in before])
    return (
        f"co-shard: op_trans() what has {' or '.join(sorted(names))} into {SHARDS} parts on its device, recompute() "
        "them with what only they read, and op_order() them one after the other"
        if parts
        else ""
    )


def _dims_of_layers(graph: Graph) -> dict[str, list[tuple[_Factor, frozenset[int]]]]:
    """Dims of weights within one layer that divide into shards, and the nodes that have them; those share no node.

    Of dims with common nodes, as heads and what is in a head, the one with the most nodes is taken.
    """
    nodes: dict[str, list[int]] = defaultdict(list)
    for index in dict.fromkeys(op.node for op in graph.forward):
        nodes[layer_in(graph.pcg, graph.pcg.nodes[index].path)].append(index)
    found: dict[str, list[tuple[_Factor, frozenset[int]]]] = defaultdict(list)
    for layer, named in _factors(graph).items():
        having = [(name, frozenset(i for i in nodes[layer] if candidates(graph, i, name))) for name in named]
        for name, those in sorted(having, key=lambda item: (-len(item[1]), item[0])):
            if len(those) > 1 and all(those.isdisjoint(other) for _, other in found[layer]):
                found[layer].append((name, those))
    return found


def _factors(graph: Graph) -> dict[str, list[_Factor]]:
    """Of every layer the factors of its weights' dims that no other layer has, by the first weight that has them."""
    layers: dict[int, set[str]] = defaultdict(set)
    for node, numbers in zip(graph.pcg.nodes, graph.dimensions, strict=True):
        for number in numbers:
            layers[number].add(layer_in(graph.pcg, node.path))
    found: dict[str, dict[int, _Factor]] = defaultdict(dict)
    for index in graph.pcg.of("parameter"):
        node, known = graph.pcg.nodes[index], graph.atoms[index]
        for dim, sizes in enumerate(known.dims):
            for factor, (atom, size) in enumerate(zip(known.of_dim(dim), sizes, strict=True)):
                number = graph.dimensions[index][atom]
                layer = layer_in(graph.pcg, node.path)
                if len(layers[number]) == 1 and size % SHARDS == 0 and layer:
                    found[layer].setdefault(number, (node.name, dim, factor))
    return {layer: list(named.values()) for layer, named in found.items()}


def _only_read_by(graph: Graph, nodes: Collection[int], ops: Sequence[Op]) -> list[Op]:
    """Of some operators those outside of `nodes` whose results go nowhere but into these, as a norm before them."""
    known, found = set(nodes), list[Op]()
    for op in reversed(ops):
        if op.node not in known and set(graph.pcg.consumers[op.node]) <= known:
            known.add(op.node)
            found.append(op)
    return found[::-1]


# Micro-batches


def in_flight(tasks: Tasks, order: Iterable[Op], device: int) -> int:
    """The most micro-batches whose forward a device has begun and whose backward it has not ended; 0 without any.

    `order`: the tasks of the device as it runs them.
    """
    label = _micro(tasks.graph, device)
    if label is None:
        return 0
    own = [op for op in order if label in op.labels and op.phase in (Phase.FORWARD, Phase.BACKWARD, Phase.WEIGHT)]
    last = {op.labels[label].number: at for at, op in enumerate(own)}
    most, now = 0, set[int]()
    for at, op in enumerate(own):
        number = op.labels[label].number
        now.add(number)
        most = max(most, len(now))
        if last[number] == at:
            now.remove(number)
    return most


def _micro(graph: Graph, device: int) -> Label | None:
    """The transformation whose parts are a device's micro-batches: one along the samples."""
    return next(iter(micro_batches(graph.forward, device)), None)


def _in_flight(graph: Graph, *, most: int) -> str:
    """Order the micro-batches of every device; drops the plan's own orders between micro-batches."""
    by_device: dict[int, dict[int, list[Op]]] = {}
    names = set()
    for device in sorted({op.device for op in graph.forward if op.device is not None}):
        label = _micro(graph, device)
        if label is not None:
            names.add(label[0])
            found = by_device.setdefault(device, {})
            for op in graph.forward:
                if op.device == device:
                    found.setdefault(op.labels[label].number, []).append(op)
    if not names:  # they are a loop, whose operators cannot be ordered apart
        return ""
    graph.orders[:] = [order for order in graph.orders if not _between(order, names)]
    for found in by_device.values():
        _one_after_the_other([ops for _, ops in sorted(found.items())], most)
    return (
        f"at most {most} micro-batch{'es' * (most > 1)} in flight on a device: op_order() the backward of one before "
        f"the forward of the {_ordinal(most)} after it, instead of the plan's order of micro-batches"
    )


def _between(order: Order, names: Collection[str]) -> bool:
    """True if an order is between micro-batches; updates have none."""
    ops = (*order.first, *order.second)
    found = {tuple(cut.number for cut in op.cuts if cut.label in names) for op in ops}
    return len(found) > 1 and all(op.phase is not Phase.UPDATE for op in ops)


def _one_after_the_other(batches: Sequence[Sequence[Op]], most: int) -> None:
    """The backward of every micro-batch before the forward of the one `most` after it."""
    for before, after in zip(batches, batches[most:], strict=False):
        op_order([half for op in before for half in (op.backward, op.weight)], after)


def _ordinal(count: int) -> str:
    return {1: "first", 2: "second", 3: "third"}.get(count, f"{count}th")


def _accumulated(graph: Graph, *, count: int) -> str:
    """Split the samples of every operator into micro-batches, one after the other on its device."""
    if any(_micro(graph, device) for device in {op.device for op in graph.forward if op.device is not None}):
        return ""
    parts, groups = dict[Op, list[Op]](), dict[tuple[int, int], int]()
    for op in graph.forward:
        assert op.device is not None
        parts[op] = op_trans(op, split("batch", count, "micro"))
        op_assign(parts[op], op.device)
        for number, part in enumerate(parts[op]):
            part.group = graph.micro_batch_group(graph, groups, op.group, number)
            part.swapped = graph.micro_batch_group(graph, groups, op.swapped, number)
    _follow(graph, parts)
    for device in sorted({op.device for op in parts if op.device is not None}):
        own = [made for op, made in parts.items() if op.device == device]
        _one_after_the_other(list(zip(*own, strict=True)), 1)
    return (
        f'micro-batches one after the other: op_trans() every operator by split("batch", {count}, "micro") on its '
        "device, and op_order() the backward of one before the forward of the next"
    )


# Parameters


def _states_split(graph: Graph, *, tasks: Tasks) -> str:
    count = _updates_split(graph, tasks)
    return f"ZeRO-1: op_trans() updates by evenly(op, {count}), each part on another device" if count else ""


def _weights_split(graph: Graph, *, tasks: Tasks) -> str:
    count = _updates_split(graph, tasks, placed=True)
    return f"ZeRO-3: place() parameters by evenly(op, {count}) on the devices that read them" if count else ""


def _states_on_host(graph: Graph) -> str:
    own = [op for op in graph.optimizer if op.swapped is None]
    swap(own)
    names = {op.of.name for op in own}
    return f"states on the host: swap() the updates of {len(names)} parameters" if own else ""


def _updates_split(graph: Graph, tasks: Tasks, placed: bool = False) -> int:
    """Split the updates of parameters that several devices hold; return among how many, 0 if there are none.

    `placed`: the parameters too are kept in these parts.
    """
    parts: dict[Op, list[Op]] = {}
    count = 0
    for node, how, devices in _replicated(graph, tasks):
        old = graph.parts(node)
        made = op_trans(graph.renewed(node), how)
        for part, device in zip(made, devices, strict=True):
            op_assign(part, device)
        if placed:
            place(graph, graph.pcg.nodes[node].name, how, devices)
        parts |= dict.fromkeys(old, made)
        count = len(devices)
    _follow(graph, parts)
    return count


def _replicated(graph: Graph, tasks: Tasks) -> list[tuple[int, Transformation, list[int]]]:
    """Trained parameters that several devices keep and update whole, how they split evenly, and these devices."""
    kept: dict[tuple[int, Phase], dict[int, bool]] = defaultdict(dict)
    for op in tasks.ops:
        if op.phase in (Phase.STORE, Phase.UPDATE) and op.device is not None:
            kept[op.node, op.phase][op.device] = op.mask(None) == whole(graph.atoms[op.node].sizes)
    placed, found = {store.node for store in graph.stores}, []
    for (node, phase), devices in kept.items():
        if phase is Phase.UPDATE and devices == kept[node, Phase.STORE] and all(devices.values()) and len(devices) > 1:
            how = evenly(graph.parts(node)[0], len(devices))
            if node not in placed and not isinstance(how, Replicate):
                found.append((node, how, sorted(devices)))
    return found


def _follow(graph: Graph, parts: Mapping[Op, Sequence[Op]]) -> None:
    """Put the parts of operators in place of them in the plan's orders, with what is derived from them."""

    def followed(ops: Iterable[Op]) -> tuple[Op, ...]:
        found: list[Op | None] = []
        for op in ops:
            if op.forward is None:
                found += parts.get(op, (op,))
            else:
                found += [graph.derived(part, op.phase) for part in parts[op.forward]] if op.forward in parts else [op]
        return tuple(dict.fromkeys(op for op in found if op is not None))

    graph.orders[:] = [Order(followed(o.first), followed(o.second), o.where) for o in graph.orders]
