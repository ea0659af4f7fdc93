"""The model's classes: one for every kind of repeated block, one for the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from ...model.atoms import atoms
from ...model.layout import B, R
from ...model.operator import operator
from ...model.pcg import FLOATS, SOURCES, Node
from ...model.sparse import sparse_tables
from ...model.updates import updated
from ..spread import spread_argument
from .axes import joint_name, summed_over
from .beside import Side, SideBySide, side_by_side
from .blocks import chains
from .body import Body
from .classes import Classes
from .expressions import local_shape_text
from .lines import axes_read, reads_mesh, reserved
from .loops import Loop, loops, results
from .losses import counted, label_count
from .micro import divided
from .moves import Local, Used
from .names import identifier, joins, roles, short_names
from .text import wrap
from .units import Divided, Looks, Unit, alike, entry_name, relative_name, site_step

if TYPE_CHECKING:
    from ..plan import Plan


def argument_name(plan: Plan, index: int) -> str:
    """What an input of the graph is called in the program."""
    name = identifier(plan.graph.nodes[index].name)
    return f"{name}_" if name in reserved() or name in plan.axes else name


class Modules:
    """Writes the classes; afterwards `divisors` tells the training step what is counted before the first forward."""

    def __init__(self, plan: Plan, used: Used, classes: Classes | None = None) -> None:
        self.plan, self.used = plan, used
        self.micro_divided, self.loss_divided = self._divided()
        self.divisors: list[dict[str, Any]] = []
        self.looks = Looks.of(plan, self.micro_divided)
        self.loops = loops(plan, chains(plan, self.looks))
        self.roles = roles(plan.graph) | results(self.loops)
        for loop in self.loops:
            self.roles |= loop.roles(plan)
        self.base = "Module" if plan.dtype.startswith("mixed") else "nn.Module"
        self.all_sharded = all_sharded(plan)
        self.joins = joins(plan.graph)
        self.factors = False  # whether a dim of some weight is given by its factors
        self.strided = False  # whether it is the dim along which a weight is joined
        self.beside = side_by_side(plan)
        self.classes = classes or Classes(self.base)

    def _divided(self) -> tuple[Divided, bool]:
        return divided(self.plan.graph, self.plan.micro_batches)

    def text(self) -> str:
        model = self.model("Model", "The whole model, of which every rank computes its part.", "mesh, dtype=DTYPE")
        return "\n\n\n".join([*self.classes.texts(), model])

    def model(self, title: str, doc: str, arguments: str) -> str:
        """The class of all that is in no block; `arguments` are its constructor's."""
        graph = self.plan.graph
        lists: list[str] = []
        hidden: set[int] = set()  # nodes and weights that belong to blocks
        for loop in self.loops:
            lists += self._chain(loop)
            hidden |= loop.chain.nodes.union(*(loop.chain.weights(k) for k in range(len(loop.chain.units))))
        sources = [
            i
            for i, n in enumerate(graph.nodes)
            if n.op in ("parameter", "buffer") and self._read(i) and i not in hidden
        ]
        short = short_names((graph.nodes[i].name for i in sources), {loop.attribute for loop in self.loops})
        weights = {i: f"self.{short[graph.nodes[i].name]}" for i in sources}
        inside = {i for found in self.beside.values() for side in found.sides for i in side.nodes}
        own = frozenset(i for i, n in enumerate(graph.nodes) if n.op not in SOURCES and i not in hidden | inside)
        means = counted(graph)
        divisors = {i: "divisor" if k == 0 else f"divisor{k + 1}" for k, i in enumerate(means)}
        body = self._body(own, weights, divisors)
        body.beside = self.beside
        for i, name in divisors.items():
            body.argument(-1 - i, name)
        body.waiting = sorted(
            ((loop, number) for loop in self.loops for number in range(len(loop.chain.passes))),
            key=lambda wait: wait[0].chain.passes[wait[1]][0].nodes[0],
        )
        while body.waiting:
            body.loop(*body.waiting[0])
        forward = body.lines(self._results(body), 8, self._returned)
        lines = [f"class {title}({self.base}):", f'    """{doc}"""', ""]
        lines += self._init(weights, arguments, ["self.mesh, self.dtype = mesh, dtype"], lists)
        lines += ["", *self._function("forward", list(body.arguments.values()), self._shapes(body.arguments), forward)]
        for found in self.beside.values():
            for side in found.sides:
                if side.ends:
                    lines += ["", *self._side(found, side, weights)]
        for i, name in divisors.items():
            lines += ["", *self._count(i, name, own, weights)]
        return "\n".join(lines)

    def _results(self, body: Body) -> list[int]:
        """What the model computes: its loss."""
        loss = self.plan.graph.loss
        return [body.value(loss, tuple(R if x == B else x for x in self.plan.choices[loss].given))]

    def _returned(self, texts: Sequence[str]) -> str:
        return f"return {texts[0]}" + (f" / {self.plan.micro_batches}" if self.loss_divided else "")

    def _side(self, found: SideBySide, side: Side, weights: dict[int, str]) -> list[str]:
        """The method of the branches at one coordinate."""
        inner = {i for other in self.beside.values() for s in other.sides for i in s.nodes if s.nodes < side.nodes}
        body = self._body(side.nodes - inner, weights, {}, inputs=False)
        body.beside = self.beside
        for i in found.reads(self.plan, side):
            body.given(i)
        join = found.bundle.join
        asked = dict(zip(self.plan.graph.nodes[join].inputs, self.plan.choices[join].inputs, strict=True))
        results = [body.value(i, asked[i]) for i in side.ends]
        dim = self.plan.graph.nodes[join]["dim"]

        def returned(texts: Sequence[str]) -> str:
            return f"return {texts[0]}" if len(texts) == 1 else f"return torch.cat(({', '.join(texts)}), {dim})"

        lines = body.lines(results, 8, returned)
        return self._function(
            side.method, list(body.arguments.values()), self._shapes(body.arguments, given=True), lines
        )

    def _body(
        self, own: frozenset[int], weights: dict[int, str], divisors: dict[int, str], inputs: bool = True
    ) -> Body:
        body = Body(self.plan, own, weights, self.used, self.micro_divided, divisors, self.roles)
        for i in self.plan.graph.of("input") if inputs else ():
            body.argument(i, argument_name(self.plan, i))
            if self.plan.graph.nodes[i].dtype in FLOATS and self.plan.dtype != "float32":
                body.cast(i)  # data come in float32
        return body

    def _chain(self, loop: Loop) -> list[str]:
        """Writes the classes of a chain of blocks; the lines that build its list."""
        chain = loop.chain
        written: dict[Any, str] = {}
        kinds: dict[str, list[Unit]] = {}  # what a class says -> its units
        said: list[str] = []
        for place, unit in enumerate(chain.units):
            signature = tuple(chain.passes[way][place].signature for way in chain.ways)
            if signature not in written:
                written[signature] = self._block(loop, place)
            said.append(written[signature])
            kinds.setdefault(said[-1], []).append(unit)
        names: dict[str, str] = {}
        for content, units in kinds.items():
            wish = loop.title
            if len(kinds) > 1 and units == [chain.units[0]]:
                wish = f"First{loop.title}"
            elif len(kinds) > 1 and units == [chain.units[-1]]:
                wish = f"Last{loop.title}"
            names[content] = self.classes.add(content, wish, chain.prefix, chain.period, units)
        parts = []
        for content, group in groupby(zip(said, chain.units, strict=True), key=lambda pair: pair[0]):
            firsts = [u.first for _, u in group]
            name = names[content]
            if len(firsts) == 1:
                parts.append(f"{name}(mesh, dtype, {firsts[0]})")
            else:
                start = f"{firsts[0]}, " if firsts[0] or chain.period > 1 else ""
                step = f", {chain.period}" if chain.period > 1 else ""
                entries = self._entries(f"range({start}{firsts[-1] + chain.period}{step})")
                parts.append(f"*({name}(mesh, dtype, i) for i in {entries})")
        if len(parts) == 1 and parts[0].startswith("*"):
            built = f"self.{loop.attribute} = nn.ModuleList{parts[0][1:]}"
        else:
            built = f"self.{loop.attribute} = nn.ModuleList([{', '.join(parts)}])"
        return wrap(built, 8)

    def _entries(self, text: str) -> str:
        """The entries of a list that a loop is over, as its class says them."""
        return text

    def _block(self, loop: Loop, place: int) -> str:
        """The methods of a unit's class: a forward for every way in which passes compute it."""
        graph, chain = self.plan.graph, loop.chain
        first = chain.units[place].first
        relative = {i: relative_name(chain.prefix, first, graph.nodes[i].name) for i in chain.weights(place)}
        plain = {i: rest if chain.period == 1 else f"{offset}.{rest}" for i, (offset, rest) in relative.items()}
        short = short_names(plain.values())
        weights = {i: f"self.{short[plain[i]]}" for i in relative}

        def original(name: str) -> str:
            offset, rest = relative_name(chain.prefix, first, name)
            return f'f"{entry_name(chain.prefix, "{i}" if not offset else f"{{i + {offset}}}")}{rest}"'

        dropout = any(site_step(self.plan, units) for units in chain.passes)
        head = f"self.mesh, self.dtype{', self.i' * dropout} = mesh, dtype{', i' * dropout}"
        lines = self._init(weights, "mesh, dtype, i", [head], original=original)
        lines += ["", *self._pass(loop, chain.main, place, weights)]
        for way in chain.ways[1:]:
            if alike(self.plan, chain, way, chain.main, place, self.looks):
                lines += ["", f"    {loop.method(way)} = forward"]
            else:
                lines += ["", *self._pass(loop, way, place, weights)]
        return "\n".join(lines)

    def _pass(self, loop: Loop, way: int, place: int, weights: dict[int, str]) -> list[str]:
        """The method that computes a block as pass `way` does."""
        unit = loop.chain.passes[way][place]
        body = self._body(frozenset(unit.nodes), weights, {}, inputs=False)
        for i, name in zip(unit.carried, loop.slots, strict=True):
            body.argument(i, name)
        for i in unit.others:
            body.given(i)
        for i in unit.nodes:
            if self.plan.graph.nodes[i].op == "dropout":
                body.sites[i] = loop.site(self.plan, way, unit.first, i)
        results = body.results(unit)
        if not any(self.plan.graph.nodes[i].gradient for i in unit.nodes):
            body.unrecorded()
        lines = body.lines(results, 8, lambda texts: f"return {', '.join(texts)}")
        shapes = self._shapes(body.arguments, given=True)
        told = ["site"] if loop.counts(self.plan) else []
        return self._function(loop.method(way), [*body.arguments.values(), *told], shapes, lines)

    def _read(self, index: int) -> bool:
        return bool(self.plan.graph.consumers[index]) or index == self.plan.graph.loss

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
            arguments_of = [
                original(node.name),
                shape,
                *([f"cuts={cuts}"] if cuts else []),
                *([f"{self.joins}={_joined(node, original)}"] if node.get("tables") or node.get("joined") else []),
                *spread_argument(plan, index, original(node.name)),
            ]
            given = lists_of[index]
            # What all weights have in common is said once; a weight that differs says so.
            said = {k: v for k, v in given.items() if common.get(k) != v}
            said |= {k: _DEFAULTS[k] for k in common if k not in given}
            arguments_of += [f"{k}={v}" for k, v in said.items()]
            lines += wrap(f"{attribute} = part({', '.join(arguments_of)})", 8)
        if weights:
            said_once = ", ".join(["weight", *(f"{k}={v}" for k, v in common.items())])
            lines.insert(0, f"        part = partial({said_once})")
        head = [f"    def __init__(self, {arguments}):", "        super().__init__()", *(f"        {x}" for x in first)]
        if any("precision" in line for line in lines):
            head.append("        precision = torch.promote_types(dtype, torch.float32)  # of the weights themselves")
        return head + _axes(lines, self._groups(), "mesh") + lines + list(lists)

    def _groups(self) -> list[str]:
        """What the constructors may say of the mesh."""
        return [group.name for group in self.plan.groups]

    def _options(self, index: int) -> dict[str, str]:
        """What the program's `weight` must know besides name and shape."""
        plan = self.plan
        node, choice = plan.graph.nodes[index], plan.choices[index]
        float_dtype = "precision" if plan.dtype.startswith("mixed") else "dtype"
        options = {"dtype": float_dtype if node.dtype in FLOATS else f"torch.{node.dtype}"}
        summed = joint_name(plan, summed_over(plan, index))
        if summed and node.gradient:
            options["summed"] = summed
            if choice.sharded_states and not self.all_sharded:
                options["sharded"] = "True"
        if not node.gradient:
            options["trainable"] = "False"
        if index in sparse_tables(plan.graph):
            options["sparse"] = "True"
        if index in updated(plan.graph):
            reader, place = updated(plan.graph)[index]
            changing = plan.graph.nodes[reader]
            options["running"] = "1.0" if operator(changing.op).named(changing)[place] == "var" else "0.0"
        return options

    def _cuts(self, index: int) -> tuple[str, str]:
        """Shape and cuts of a weight as `weight` takes them."""
        plan = self.plan
        known = atoms(plan.graph)[index]
        local = Local(known, plan.choices[index].output, plan.placement.sizes, plan.axes)
        shape, cuts, entry = [], [], 0
        for dim, numbers in enumerate(known.dims):
            of_dim = list(known.of_dim(dim))
            split = [a for a in of_dim if local.splits(a)]
            plain = len(of_dim) <= 1 or not split or (split == of_dim[:1] and isinstance(local.atom(of_dim[0]), int))
            if plain:
                axes = local.splits(of_dim[0]) if split else ()
                shape.append(str(plan.graph.nodes[index].shape[dim]))
                if axes:
                    cuts.append(f"{entry}: {_tuple([plan.axes[i] for i in axes])}")
                entry += 1
                continue
            self.factors = True
            self.strided |= dim == 0 and bool(plan.graph.nodes[index].get("joined"))
            shape.append(f"({', '.join(map(str, numbers))})")
            for offset, a in enumerate(of_dim):
                if local.splits(a):
                    cuts.append(f"{entry + offset}: {_tuple([plan.axes[i] for i in local.splits(a)])}")
            entry += len(of_dim)
        if beside := plan.choices[index].beside:  # the first dim, all of it at one coordinate
            self.used.placed = self.used.uneven = True
            cuts.insert(0, f"0: {_tuple([f'{plan.axes[a]}.only({c})' for a, c in beside])}")
        return _tuple(shape), f"{{{', '.join(cuts)}}}" if cuts else ""

    def _function(self, name: str, arguments: Sequence[str], doc: str, lines: Sequence[str]) -> list[str]:
        head = wrap(f"def {name}({', '.join(['self', *arguments])}):", 4)
        body = [*_axes(lines, self.plan.axes, "mesh"), *lines]
        if reads_mesh(body):
            body.insert(0, "        mesh = self.mesh")
        return [*head, *([f'        """{doc}"""'] if doc else []), *body]

    def _shapes(self, arguments: Mapping[int, str], given: bool = False) -> str:
        """The arguments' shapes; `given`: in the layouts that all readers get."""
        plan = self.plan
        known = atoms(plan.graph)
        parts = []
        for i, name in arguments.items():
            if i >= 0:
                layout = plan.choices[i].given if given else plan.choices[i].output
                local = Local(known[i], layout, plan.placement.sizes, plan.axes)
                parts.append(f"{name}: {local_shape_text(local)}")
        text = ", ".join(parts)
        return f"{text}." if len(text) < 100 else ""

    def _count(self, loss: int, name: str, own: frozenset[int], weights: dict[int, str]) -> list[str]:
        """The method that counts the labels of one micro-batch; what it reads is computed from the inputs alone."""
        plan = self.plan
        node, choice = plan.graph.nodes[loss], plan.choices[loss]
        body = self._body(own, weights, {})
        results = [body.value(i, x) for i, x in list(zip(node.inputs, choice.inputs, strict=True))[1:]]
        site = body.site(loss)

        def returned(texts: Sequence[str]) -> str:
            return f"return {label_count(site, texts[0], texts[1] if len(texts) > 1 else None)}"

        lines = body.lines(results, 8, returned)
        used = body.read_arguments(results)
        method = f"count_labels{name.removeprefix('divisor')}"
        labels = Local(atoms(plan.graph)[node.inputs[1]], choice.inputs[1], plan.placement.sizes, plan.axes)
        split = sorted({i for a in range(len(labels.known.sizes)) for i in labels.splits(a)})
        self.divisors.append({"name": name, "method": method, "axes": [plan.axes[i] for i in split]})
        doc = (
            "How many labels of this rank count."
            if len(results) == 1
            else "The sum of the weights of this rank's labels."
        )
        return self._function(method, [*used, "**_"], doc, lines)


def all_sharded(plan: Plan) -> bool:
    """Whether ranks update shares of every weight with a dense gradient: then no weight need say so."""
    sparse = sparse_tables(plan.graph)
    trained = [i for i in plan.graph.of("parameter") if plan.graph.nodes[i].gradient and i not in sparse]
    return all(plan.choices[i].sharded_states and summed_over(plan, i) for i in trained)


def _axes(lines: Sequence[str], axes: Sequence[str], mesh: str) -> list[str]:
    """Bare names for the axes that lines speak of."""
    read = axes_read(lines, axes)
    if not read:
        return []
    return [f"        {', '.join(read)} = {', '.join(f'{mesh}.{a}' for a in read)}"]


_DEFAULTS = {
    "summed": "None",
    "tied": "None",
    "sharded": "False",
    "trainable": "True",
    "running": "None",
    "sparse": "False",
}


def _common(options: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """The options that most of some weights have."""
    counts = Counter((k, v) for of_one in options for k, v in of_one.items())
    return {k: v for (k, v), count in reversed(counts.most_common()) if 2 * count >= len(options)}


def _joined(node: Node, original: Callable[[str], str]) -> str:
    """What a weight joins, name to rows."""
    return f"{{{', '.join(f'{original(name)}: {shape[0]}' for name, shape in node.originals.items())}}}"


def _tuple(parts: Sequence[str]) -> str:
    return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"
