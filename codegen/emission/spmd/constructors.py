"""Constructors of the classes: a rank's parts of the weights, and how their gradients are synchronized."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from ....model.graph.atoms import atoms
from ....model.graph.buffer_updates import updated
from ....model.graph.dtypes import FLOATS
from ....model.graph.sparse_tables import sparse_tables
from ....model.machine.precision import precision
from ....model.operators.operator import operator
from ...plan.plan import Plan
from ...plan.table_spread import spread_argument
from ...pricing.axis_groups import axis_groups, joint_name, summed_over
from ..common.conversions import Used, local_part
from ..common.names import joined_argument, joined_text
from ..common.statements import axes_read
from ..common.text import tuple_text, wrap
from .gatherings import ClassGatherings


class Constructors:
    """Writes constructors; `factors` is then what the program's function `weight` must support."""

    def __init__(self, plan: Plan, used: Used) -> None:
        self.plan, self.used = plan, used
        self.base = "Module" if precision(plan.dtype).narrow else "nn.Module"
        self.all_sharded = all_sharded(plan)
        self.joined_argument = joined_argument(plan.graph)
        self.factors = False  # True if a dim of some weight is given by its factors
        self.gatherings = ClassGatherings(set())  # of the class that is being written
        self.compiled: list[str] = []  # methods of that class which a compiled program compiles
        self.earlier_gatherings = False  # True if classes that are written have some

    @property
    def has_gatherings(self) -> bool:
        """True if some class has gatherings."""
        return self.earlier_gatherings or bool(self.gatherings.names)

    def _begin_class(self, taken: Iterable[str]) -> None:
        """Begin to write a class whose attributes have these names."""
        self.earlier_gatherings = self.has_gatherings
        self.gatherings, self.compiled = ClassGatherings({*taken}), []

    def _init(
        self,
        weights: dict[int, str],
        arguments: str,
        first: Sequence[str],
        lists: Sequence[str] = (),
        original: Callable[[str], str] = '"{}"'.format,
    ) -> list[str]:
        """The constructor; `original` is how it writes a weight's name in the user's module."""
        plan = self.plan
        lists_of = {index: self._options(index) for index in weights}
        common = _common(list(lists_of.values()))
        lines: list[str] = []
        for index, attribute in weights.items():
            node = plan.graph.nodes[index]
            shape, cuts = self._cuts(index)
            is_joined = node.get("tables") or node.get("joined")
            arguments_of = [
                original(node.name),
                shape,
                *([f"cuts={cuts}"] if cuts else []),
                *([f"{self.joined_argument}={joined_text(node, original)}"] if is_joined else []),
                *spread_argument(plan, index, original(node.name)),
            ]
            given = lists_of[index]
            # Common options are written once, and overridden where a weight differs.
            said = {k: v for k, v in given.items() if common.get(k) != v}
            said |= {k: _DEFAULTS[k] for k in common if k not in given}
            arguments_of += [f"{k}={v}" for k, v in said.items()]
            lines += wrap(f"{attribute} = part({', '.join(arguments_of)})", 8)
        if weights:
            said_once = ", ".join(["weight", *(f"{k}={v}" for k, v in common.items())])
            lines.insert(0, f"        part = partial({said_once})")
        lines += self.gatherings.lines(weights)
        self.used.several_layers |= self.gatherings.several_layers
        head = [f"    def __init__(self, {arguments}):", "        super().__init__()", *(f"        {x}" for x in first)]
        if any("precision" in line for line in lines):
            head.append("        precision = torch.promote_types(dtype, torch.float32)  # of stored weights")
        return head + axes_line(lines, self._groups(), "mesh") + lines + list(lists)

    def _groups(self) -> list[str]:
        """The groups of the mesh that constructors may mention."""
        return [group.name for group in axis_groups(self.plan)]

    def _options(self, index: int) -> dict[str, str]:
        """The options of a weight besides name and shape."""
        plan = self.plan
        node, choice = plan.graph.nodes[index], plan.choices[index]
        options = {"dtype": self._dtype(index) if node.dtype in FLOATS else f"torch.{node.dtype}"}
        summed = joint_name(plan.at(index), summed_over(plan, index))
        if summed and node.gradient:
            options["summed"] = summed
            if choice.sharded_states and not self.all_sharded:
                options["sharded"] = "True"
            if choice.sharded_gradients:
                options["scattered"] = "True"
        if choice.offloaded:
            options["offloaded"] = "True"
        if not node.gradient:
            options["trainable"] = "False"
        if index in sparse_tables(plan.graph):
            options["sparse"] = "True"
        if index in updated(plan.graph):
            reader, place = updated(plan.graph)[index]
            changing = plan.graph.nodes[reader]
            options["running"] = "1.0" if operator(changing.op).named(changing)[place] == "var" else "0.0"
        return options

    def _dtype(self, index: int) -> str:
        """The dtype in which a weight is stored: the model's, or one of at least 32 bits."""
        stored, node = precision(self.plan.dtype), self.plan.graph.nodes[index]
        if node.op == "buffer":
            return "precision" if stored.narrow else "dtype"
        sparse = index in sparse_tables(self.plan.graph)
        return "dtype" if (stored.master if sparse else stored.parameters) == stored.compute else "precision"

    def _cuts(self, index: int) -> tuple[str, str]:
        """Shape and cuts of a weight, as arguments."""
        plan = self.plan
        known = atoms(plan.graph)[index]
        local = local_part(plan, index, plan.choices[index].output)
        shape, cuts, entry = [], [], 0
        for dim, numbers in enumerate(known.dims):
            of_dim = list(known.of_dim(dim))
            split = [a for a in of_dim if local.splits(a)]
            plain = len(of_dim) <= 1 or not split or (split == of_dim[:1] and isinstance(local.atom(of_dim[0]), int))
            if plain:
                axes = local.splits(of_dim[0]) if split else ()
                shape.append(str(plan.graph.nodes[index].shape[dim]))
                if axes:
                    cuts.append(f"{entry}: {tuple_text([plan.axes[i] for i in axes])}")
                entry += 1
                continue
            self.factors = True
            shape.append(f"({', '.join(map(str, numbers))})")
            for offset, a in enumerate(of_dim):
                if local.splits(a):
                    cuts.append(f"{entry + offset}: {tuple_text([plan.axes[i] for i in local.splits(a)])}")
            entry += len(of_dim)
        if beside := plan.choices[index].beside:  # the first dim, all of it at one coordinate
            self.used.placed = self.used.uneven = True
            _, start, stop = plan.range_of.get(index, (0, 0, 0))
            only = [f"{plan.axes[a]}.only({f'{start}, {stop}' if stop else c})" for a, c in beside]
            cuts.insert(0, f"0: {tuple_text(only)}")
        return tuple_text(shape), f"{{{', '.join(cuts)}}}" if cuts else ""


def trained(plan: Plan) -> list[int]:
    """The weights that have a dense gradient."""
    sparse = sparse_tables(plan.graph)
    return [i for i in plan.graph.of("parameter") if plan.graph.nodes[i].gradient and i not in sparse]


def reduces_behind(plan: Plan) -> bool:
    """True if gradients are summed over ranks while backward goes on.

    Not where ranks have parallel branches, whose gradients they have at different times, so that they would call
    collectives in different orders, and in schedule 2bw, whose steps overlap anyway.
    """
    if not plan.overlap or plan.schedule.double_buffered:
        return False
    if any(choice.beside or choice.joins for stage in plan.stages for choice in stage.choices):
        return False
    return any(summed_over(stage, index) for stage in plan.stages for index in trained(stage))


def all_sharded(plan: Plan) -> bool:
    """True if ranks update shares of every weight with a dense gradient: then it is no option of single weights."""
    return not plan.separate_states and all(
        plan.choices[i].sharded_states and summed_over(plan, i) for i in trained(plan)
    )


def axes_line(lines: Sequence[str], axes: Sequence[str], mesh: str) -> list[str]:
    """The line that gives bare names to the axes mentioned in `lines`."""
    read = axes_read(lines, axes)
    if not read:
        return []
    return [f"        {', '.join(read)} = {', '.join(f'{mesh}.{a}' for a in read)}"]


_DEFAULTS = {
    "summed": "None",
    "tied": "None",
    "sharded": "False",
    "scattered": "False",
    "offloaded": "False",
    "trainable": "True",
    "running": "None",
    "sparse": "False",
}


def _common(options: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """The options that most weights of a class have; `tied` is given for every single weight."""
    counts = Counter((k, v) for of_one in options for k, v in of_one.items() if k != "tied")
    return {k: v for (k, v), count in reversed(counts.most_common()) if 2 * count >= len(options)}
