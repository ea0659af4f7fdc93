"""Weights: one variable each, whose options say how a parameter is stored and trained."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ....model.errors import PartitaError
from ....model.graph.atoms import atoms
from ....model.graph.joined_tables import table_rows
from ....model.optimizers import optimizer_states
from ...network.chains import Position
from ...parallelism import Role
from ...special.table_spread import row_columns
from ...weights.fixed_memory import excess_bytes, largest_weight, stored_buffers
from ...weights.storage import (
    LEAST,
    Storage,
    accumulate_ns,
    agreeing,
    exchange_ns,
    looked_up_bytes,
    looked_up_ns,
    per_step_ns,
    scatter_ns,
    storage,
    stored_as,
    stored_bytes,
    whole_each_way,
    worthwhile,
)
from .encoding_pass import EncodingPass
from .hubs import connect_hub

Array = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Gradient:
    """Of a parameter: dense or not, the `stages` that send it; if sparse, the atoms of rows, and look-ups.

    `tied`: other stages have the parameter too; `elsewhere`: one on the same devices, which updates it. `excess`: bytes
    of its transient buffers, where it is larger than every weight of the graph without alternatives.
    """

    dense: bool
    stages: int = 1
    rows: tuple[int, ...] = ()
    ids: int = 0
    excess: int = 0
    tied: bool = False
    elsewhere: bool = False


class Weights(EncodingPass):
    """s_w: how a parameter is stored, added beside its first reader; several readers share one conversion."""

    def read(self, base: int, node: int, operand: int) -> None:
        builder = self.builder
        if builder.pcg.nodes[base].op == "parameter" and base not in builder.weights:
            self._add(base)

    def _add(self, base: int) -> None:
        builder, node = self.builder, self.builder.pcg.nodes[base]
        uses, gradient = builder.classes.uses[base], self._gradient(base)
        is_sparse = base in builder.sparse
        kept = any(builder.costs.saves(u) for u in uses) and not is_sparse
        storage_key = self._storage_key(base, gradient, kept)
        if storage_key not in builder.storages:
            builder.storages[storage_key] = self._storage(base, gradient, kept)
        stored = builder.storages[storage_key]
        updates = not (builder.stage.without_updates or gradient.elsewhere)
        trained = gradient.rows, builder.sparse.get(base), gradient.stages, gradient.excess, updates
        training_key = (*storage_key, *trained)
        key = builder.keep(training_key, lambda: self._training(stored, gradient, updates))
        shared = builder.choices.read_together(uses)
        places = [builder.classes.variable(u.node) for u in uses]
        across = shared and any(min(places) <= cut < max(places) for cut in builder.cuts)
        variable = builder.add_variable(node.name, key, Position(min(places) - 0.5, shared=across))
        builder.weights[base] = variable, stored
        if shared and not is_sparse:
            halves = (False, True) if builder.retention.by_alternatives(base) else (kept,)
            keys = tuple(self._to_hub(base, stored, half) for half in halves)
            position = Position(min(places) - 0.25, shared=across)
            connect_hub(builder, base, "weight", {variable: keys}, position)

    def _to_hub(self, base: int, stored: Storage, kept: bool) -> object:
        """The key of the tables from storage to the layouts of the hub, kept for backward or not."""
        costs, repeats = self.builder.costs, max(u.repeats for u in self.builder.classes.uses[base])
        table = costs.table(base)
        key = ("shared weight", id(stored), id(table), kept, repeats)
        return self.builder.keep(key, lambda: costs.from_storage_to(base, stored, table.codes, kept, repeats))

    def _gradient(self, base: int) -> _Gradient:
        node, sparse = self.builder.pcg.nodes[base], self.builder.sparse
        if base in sparse:
            return _Gradient(False, rows=tuple(atoms(self.builder.pcg)[base].of_dim(0)), ids=sparse[base])
        builder = self.builder
        excess = excess_bytes(builder.pcg, base, builder.placement.devices, builder.micro_batches, builder.precision)
        stages = node.get("stages", 1) if node.gradient else 1
        ends = builder.stage.both_ways and node.get("ends", False)
        here = stages > 1 and (ends or builder.stage.paired)  # all of its stages
        return _Gradient(
            node.gradient,
            1 if here else stages,
            excess=excess,
            tied=stages > 1,
            elsewhere=here and bool(builder.pcg.of("receive")),
        )

    def _storage_key(self, base: int, gradient: _Gradient, kept: bool) -> tuple[object, ...]:
        builder, node = self.builder, self.builder.pcg.nodes[base]
        return (
            "storage", builder.costs.space(base), gradient.dense, kept, table_rows(node),
            self._is_large(base, gradient), builder.offloads, gradient.tied, builder.stage.stored.get(node.name),
            builder.options.space.decided.stored.get(node.name), self._read_as(base),
        )  # fmt: skip

    @property
    def _keeps_states(self) -> bool:
        """True if the optimizer has something that could be on the host."""
        return optimizer_states(self.builder.optimizer) + self.builder.precision.copied > 0

    def _is_large(self, base: int, gradient: _Gradient) -> bool:
        pcg = self.builder.pcg
        return gradient.dense and pcg.nodes[base].numel * LEAST >= largest_weight(pcg)

    def _storage(self, base: int, gradient: _Gradient, kept: bool) -> Storage:
        """The options of storing a parameter, without those that its copies or the stage rule out."""
        builder, node = self.builder, self.builder.pcg.nodes[base]
        tables, tensor = table_rows(node), builder.costs.space(base)
        sizes = builder.placement.sizes if tables else ()
        row = row_columns(builder.machine.device, builder.precision, sparse=not gradient.dense)
        spreads = tuple(builder.options.spread_tables(tables, node.shape[1], n, row) if n > 1 else None for n in sizes)
        moves = self._is_large(base, gradient) and not builder.stage.weight_versions
        found = storage(
            tensor,
            gradient.dense,
            kept,
            spreads,
            scatter=moves and builder.micro_batches > 1,
            offload=moves and builder.offloads and self._keeps_states,
        )
        found = self._restricted(base, found, gradient)
        if not (found.scattered | found.offloaded).any():
            return found
        cost, use = self._training(found, gradient, updates=True)
        return found.only(worthwhile(found, cost, use[:, 0]))

    def _restricted(self, base: int, found: Storage, gradient: _Gradient) -> Storage:
        """Without sharded states if several stages have the parameter, and only as is fixed for the stage or decided.

        With sizes of parallelism also only as a stage of ZeRO stores it, and over tensor ranks as its readers read it.
        """
        node, parallelism = self.builder.pcg.nodes[base], self.builder.options.space.parallelism
        keep = ~found.sharded if gradient.tied else np.ones(len(found), dtype=np.bool_)
        layout = self.builder.stage.stored.get(node.name)
        if layout is not None:
            keep &= found.codes == found.space.code(layout)
        if not keep.any():
            raise PartitaError(f"parameter {node.name!r} cannot be stored in layout {layout}")
        decided = self.builder.options.space.decided.stored.get(node.name)
        if decided is not None:
            keep &= agreeing(found, decided)
            if not keep.any():
                raise PartitaError(f"parameter {node.name!r} cannot be stored as the --start plan decides")
        if self.builder.stage.both_ways:
            keep &= whole_each_way(found, gradient.dense)
        for axis, read in self._read_as(base):
            as_read = keep & np.isin(found.space.letters[found.codes, axis], read)
            keep = as_read if as_read.any() else keep
        keep = stored_as(found, keep, parallelism, self.builder.node_options.roles)
        return found if keep.all() else found.only(keep)

    def _read_as(self, base: int) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """By tensor axis what the options of its readers require of a parameter there."""
        roles = enumerate(self.builder.node_options.roles)
        return tuple((axis, self._letters_read(base, axis)) for axis, role in roles if role is Role.TENSOR)

    def _letters_read(self, base: int, axis: int) -> tuple[int, ...]:
        builder, letters = self.builder, set[int]()
        for use in builder.classes.uses[base]:
            options = builder.node_options.of(use.node)
            for operand, source in enumerate(builder.pcg.nodes[use.node].inputs):
                if source == base:
                    letters |= {*options.input_spaces[operand].letters[options.inputs[operand], axis].tolist()}
        return tuple(sorted(letters))

    def _training(self, stored: Storage, gradient: _Gradient, updates: bool) -> tuple[Array, Array]:
        """ns of a step for gradient and update [o], and bytes of the parameter, its gradient and states [o, 1].

        Without `updates` only what every micro-batch takes.
        """
        builder, precision = self.builder, self.builder.precision
        states = optimizer_states(builder.optimizer)
        use = gradient.excess + stored_bytes(
            stored, gradient.dense, precision, states, bool(gradient.rows), builder.stage.weight_versions
        )
        if builder.stage.read_as_stored and not gradient.rows:
            use = use + stored_buffers(stored, precision, builder.placement.devices, builder.micro_batches)
        if not gradient.dense:
            of_rows = stored, gradient.rows, gradient.ids, precision  # 0 for frozen parameters
            looked_up, moved = looked_up_bytes(*of_rows), looked_up_bytes(*of_rows, builder.machine.device)
            cost = looked_up_ns(looked_up, moved, builder.micro_batches, builder.roofline)
            return cost * updates, (use + builder.micro_batches * looked_up)[:, None]
        mesh = builder.transitions
        cost = per_step_ns(stored, mesh, precision, builder.roofline, states)
        if gradient.stages > 1 and builder.stage.transfer is not None:
            cost = cost + exchange_ns(stored, gradient.stages, precision, builder.stage.transfer)
        each = accumulate_ns(stored, precision, builder.roofline) + scatter_ns(stored, mesh, precision)
        return cost * updates + builder.micro_batches * each, use[:, None]
