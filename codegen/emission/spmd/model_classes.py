"""The model's classes: one for every kind of repeated block, one for the rest."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from ....formulation.strategies.tensor_classes import without_addends
from ....model.graph.dtypes import FLOATS
from ....model.graph.pcg import SOURCES
from ...plan.plan import Plan
from ..common.conversions import Used, local_part, local_shape_text
from ..common.data import argument_name
from ..common.losses import counted, label_count
from ..common.names import roles, short_names
from ..common.statements import reads_mesh
from ..common.text import wrap
from ..templates import environment
from .block_chains import chains
from .block_classes import BlockClasses
from .constructors import Constructors, axes_line, reduces_behind
from .function_body import FunctionBody
from .held_constants import DOC, attributes, built_once, method_lines, setting_line
from .loops import Loop, loops, results
from .parallel_branches import CoordinateBranches, ParallelBranches, side_by_side
from .recomputation import SegmentCall, plan_of_part, recomputed, segment_calls, segment_calls_in
from .repeated_blocks import (
    Block,
    Divided,
    NodeKinds,
    entry_name,
    random_calls,
    relative_name,
    same_pass,
    site_step,
)


class ModelClasses(Constructors):
    """Writes the classes; afterwards `divisors` has what the training step counts before the first forward.

    `found`: what is divided by the number of micro-batches (`micro_batches.divided`).
    """

    single_blocks = False  # True: a single entry of a list is a block too

    def __init__(
        self, plan: Plan, used: Used, found: tuple[Divided, bool], classes: BlockClasses | None = None
    ) -> None:
        super().__init__(plan, used)
        self.divided_operands, self.loss_divided = found
        self.divisors: list[dict[str, Any]] = []
        self.ordered = reduces_behind(plan)
        self.kinds = NodeKinds.of(plan, self.divided_operands)
        self.loops = loops(plan, chains(plan, self.kinds, self.single_blocks))
        self.modes = {
            m for loop in self.loops for found in loop.modes_of_passes if found for turn in found.modes for m in turn
        }
        self.modes |= {segment.mode for segment in recomputed(plan)}
        self.roles = roles(plan.graph) | results(self.loops)
        for loop in self.loops:
            self.roles |= loop.roles(plan)
        self.branches = side_by_side(plan)
        self.classes = classes or BlockClasses(self.base)

    def text(self) -> str:
        model = self.model("Model", "The model; every rank computes its part of it.", "mesh, dtype=DTYPE")
        if self.used.modes:
            model += f"\n\n{environment().get_template('modes.jinja').render(noise=self.used.noise)}"
        return "\n\n\n".join([*self.classes.texts(), model])

    def model(self, title: str, doc: str, arguments: str) -> str:
        """The class of everything outside blocks; `arguments` are its constructor's."""
        graph = self.plan.graph
        lists: list[str] = []
        hidden: set[int] = set()  # nodes and weights that belong to blocks
        for loop in self.loops:
            lists += self._chain(loop)
            hidden |= loop.chain.nodes.union(loop.weights)
        sources = [
            i
            for i, n in enumerate(graph.nodes)
            if n.op in ("parameter", "buffer") and self._read(i) and i not in hidden
        ]
        taken = {"reads", "compiled", *(loop.attribute for loop in self.loops)}
        short = short_names((graph.nodes[i].name for i in sources), taken)
        parts = {i: f"self.{short[graph.nodes[i].name]}" for i in sources}
        once = attributes(self._everything(), {*short.values(), *(loop.attribute for loop in self.loops)})
        lists += setting_line(once)
        weights = parts | once
        self._begin_class([*short.values(), *once.values(), *(loop.attribute for loop in self.loops)])
        inside = {i for found in self.branches.values() for side in found.sides for i in side.nodes}
        everything = frozenset(range(len(graph.nodes)))
        turns = [frozenset(u.nodes) for loop in self.loops for blocks in loop.chain.passes for u in blocks]
        calls = segment_calls(self.plan, turns, frozenset(weights).union(*(loop.weights for loop in self.loops)))
        inside |= {i for call in calls for i in call.nodes}
        elsewhere = hidden | inside | built_once(graph)
        own = frozenset(i for i, n in enumerate(graph.nodes) if n.op not in SOURCES and i not in elsewhere)
        means = counted(graph)
        divisors = {i: "divisor" if k == 0 else f"divisor{k + 1}" for k, i in enumerate(means)}
        body = self._body(own, weights, divisors)
        body.branches, body.calls = self.branches, {i: call for call in calls for i in call.outs}
        for i, name in divisors.items():
            body.argument(-1 - i, name)
        self._loops(body, everything, calls)
        lines = body.lines(self._results(body), 8, self._returned)
        methods = ["", *self._function("forward", list(body.arguments.values()), self._shapes(body.arguments), lines)]
        for call in calls:
            methods += ["", *self._segment(call, weights)]
        for found in self.branches.values():
            for side in found.sides:
                if side.ends:
                    of_side = {i: name for i, name in divisors.items() if i in side.nodes}
                    methods += ["", *self._side(found, side, weights, of_side)]
        own = own.union(*(side.nodes for found in self.branches.values() for side in found.sides))
        for i, name in divisors.items():
            methods += ["", *self._count(i, name, own, weights)]
        if once:
            of_once = self._function("constants", [], DOC, method_lines(self._everything(), once))
            methods = ["", *of_once, *methods]
        first = ["self.mesh, self.dtype = mesh, dtype"]
        if self.has_gatherings:
            first.append("mesh.order = Order()  # in which weights are gathered")
        head = [f"class {title}({self.base}):", f'    """{doc}"""', "", *self._order(parts), *self._compiles()]
        return "\n".join([*head, *self._init(parts, arguments, first, lists), *methods])

    def _order(self, parts: Mapping[int, str]) -> list[str]:
        """The order in which forward first reads weights and lists, for what follows backward through them."""
        if not self.ordered:
            return []
        readers = {name.removeprefix("self."): self.plan.graph.consumers[i] for i, name in parts.items()}
        readers |= {loop.attribute: tuple(loop.chain.nodes) for loop in self.loops}
        names = [f'"{name}"' for name in sorted(readers, key=lambda name: min(readers[name], default=-1))]
        return [*wrap(f"reads = ({', '.join(names)}{',' * (len(names) == 1)})  # in this order", 4), ""]

    def _compiles(self) -> list[str]:
        """The methods of the class that are compiled."""
        names = [f'"{name}"' for name in dict.fromkeys(self.compiled)] if self.plan.compile else []
        return [*wrap(f"compiled = ({', '.join(names)}{',' * (len(names) == 1)})", 4), ""] if names else []

    def _everything(self) -> FunctionBody:
        """A function that may compute any node."""
        return self._body(frozenset(range(len(self.plan.graph.nodes))), {}, {}, inputs=False)

    def _results(self, body: FunctionBody) -> list[int]:
        """What the model computes: its loss."""
        loss = self.plan.graph.loss
        return [body.value(loss, without_addends(self.plan.choices[loss].given))]

    def _returned(self, texts: Sequence[str]) -> str:
        return f"return {texts[0]}" + (f" / {self.plan.micro_batches}" if self.loss_divided else "")

    def _loops(self, body: FunctionBody, own: frozenset[int], calls: Sequence[SegmentCall]) -> None:
        """Write the loops over the nodes `own` of a function, without those in the methods of its `calls`."""
        chains = [loop for loop in self.loops if loop.chain.nodes <= own]
        chains = [loop for loop in chains if not any(loop.chain.nodes <= call.nodes for call in calls)]
        body.pending_loops = sorted(
            ((loop, number) for loop in chains for number in range(len(loop.chain.passes))),
            key=lambda pending: pending[0].chain.passes[pending[1]][0].nodes[0],
        )
        while body.pending_loops:
            body.loop(*body.pending_loops[0])

    def _segment(self, call: SegmentCall, weights: dict[int, str], sites: Mapping[int, str] | None = None) -> list[str]:
        """The method of a recomputed segment; `sites`: call sites of the dropouts in a loop."""
        blocks = {i for loop in self.loops if loop.chain.nodes <= call.nodes for i in loop.chain.nodes}
        body = self._body(call.nodes - blocks, weights, {}, inputs=False, plan=plan_of_part(self.plan, call.nodes))
        body.recomputed, body.dropout_sites = call.always, dict(sites or {})
        body.gathers_before = self.plan.compile
        for i in call.reads:
            body.given(i)
        self._loops(body, call.nodes, ())
        results = body.results(call)
        lines = body.lines(results, 8, lambda texts: f"return {', '.join(texts)}")
        return self._gathering_first(call.method, list(body.arguments.values()), body, lines)

    def _side(
        self, found: ParallelBranches, side: CoordinateBranches, weights: dict[int, str], divisors: dict[int, str]
    ) -> list[str]:
        """The method of the parallel branches at one coordinate."""
        inner = {i for other in self.branches.values() for s in other.sides for i in s.nodes if s.nodes < side.nodes}
        here = self.plan.at(min(side.nodes, default=found.bundle.join))
        body = self._body(side.nodes - inner, weights, divisors, inputs=False, plan=here)
        body.branches = self.branches
        for i in found.reads(self.plan, side):
            body.given(i)
        for i, name in divisors.items():
            body.argument(-1 - i, name)
        results = [body.joined_operand(found, i) for i in side.ends]
        dim = self.plan.graph.nodes[found.bundle.join].get("dim")

        def returned(texts: Sequence[str]) -> str:
            if found.bundle.adds or len(texts) == 1:
                return f"return {' + '.join(texts)}"
            return f"return torch.cat(({', '.join(texts)}), {dim})"

        lines = body.lines(results, 8, returned)
        shapes = self._shapes(body.arguments, given=True)
        return self._function(side.method, list(body.arguments.values()), shapes, lines, here.axes)

    def _body(
        self,
        own: frozenset[int],
        weights: dict[int, str],
        divisors: dict[int, str],
        inputs: bool = True,
        plan: Plan | None = None,
    ) -> FunctionBody:
        body = FunctionBody(
            plan or self.plan,
            own,
            weights,
            self.used,
            divided=self.divided_operands,
            divisors=divisors,
            roles=self.roles,
        )
        body.gatherings = self.gatherings if plan is None else None
        if inputs:
            self._inputs(body)
        return body

    def _inputs(self, body: FunctionBody) -> None:
        """Make the graph's inputs arguments of `forward`."""
        for i in self.plan.graph.of("input"):
            body.argument(i, argument_name(self.plan, i))
            if self.plan.graph.nodes[i].dtype in FLOATS and self.plan.dtype != "float32":
                body.cast(i)  # data come in float32

    def _chain(self, loop: Loop) -> list[str]:
        """Write the classes of a chain of blocks; the lines that build its list."""
        chain = loop.chain
        written: dict[Any, str] = {}
        blocks_of: dict[str, list[Block]] = {}  # text of a class -> its blocks
        texts: list[str] = []
        for place, block in enumerate(chain.blocks):
            signature = tuple(chain.passes[number][place].signature for number in chain.distinct_passes)
            if signature not in written:
                written[signature] = self._block(loop, place)
            texts.append(written[signature])
            blocks_of.setdefault(texts[-1], []).append(block)
        names: dict[str, str] = {}
        for content, blocks in blocks_of.items():
            preferred = loop.title
            if len(blocks_of) > 1 and blocks == [chain.blocks[0]]:
                preferred = f"First{loop.title}"
            elif len(blocks_of) > 1 and blocks == [chain.blocks[-1]]:
                preferred = f"Last{loop.title}"
            names[content] = self.classes.add(content, preferred, chain.prefix, chain.period, blocks)
        parts = []
        for content, group in groupby(zip(texts, chain.blocks, strict=True), key=lambda pair: pair[0]):
            firsts = [u.first for _, u in group]
            name = names[content]
            if len(firsts) == 1 and not self.single_blocks:
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
        """The entries of a list that a loop is over, as text of its class."""
        return text

    def _block(self, loop: Loop, place: int) -> str:
        """The methods of a block's class: a forward for every pass that has its own."""
        graph, chain = self.plan.graph, loop.chain
        first = chain.blocks[place].first
        relative = {i: relative_name(chain.prefix, first, graph.nodes[i].name) for i in chain.weights(place)}
        plain = {i: rest if chain.period == 1 else f"{offset}.{rest}" for i, (offset, rest) in relative.items()}
        short = short_names(plain.values(), {"compiled"})
        weights = {i: f"self.{short[plain[i]]}" for i in relative}
        self._begin_class(short.values())

        def original(name: str) -> str:
            offset, rest = relative_name(chain.prefix, first, name)
            return f'f"{entry_name(chain.prefix, "{i}" if not offset else f"{{i + {offset}}}")}{rest}"'

        dropout = any(site_step(self.plan, blocks) for blocks in chain.passes)
        head = f"self.mesh, self.dtype{', self.i' * dropout} = mesh, dtype{', i' * dropout}"
        methods = ["", *self._pass(loop, chain.main, place, weights)]
        for number in chain.distinct_passes[1:]:
            if same_pass(self.plan, chain, (number, chain.main), place, self.kinds):
                methods += ["", f"    {loop.method(number)} = forward"]
            else:
                methods += ["", *self._pass(loop, number, place, weights)]
        begin = self._init(weights, "mesh, dtype, i", [head], original=original)
        return "\n".join([*self._compiles(), *begin, *methods])

    def _pass(self, loop: Loop, number: int, place: int, weights: dict[int, str]) -> list[str]:
        """The method that computes a block in a pass."""
        block = loop.chain.passes[number][place]
        calls = segment_calls_in(self.plan, loop.chain, loop.chain.passes[number], block, frozenset(weights))
        own = frozenset(block.nodes).difference(*(call.nodes for call in calls))
        body = self._body(own, weights, {}, inputs=False, plan=plan_of_part(self.plan, own))
        body.calls = {i: call for call in calls for i in call.outs}
        body.recomputed, body.gathers_before = loop.always_recomputed(number, block), True
        for i, name in zip(block.carried, loop.carried_names, strict=True):
            body.argument(i, name)
        for i in block.others:
            body.given(i)
        body.dropout_sites = self._dropout_sites(loop, number, block)
        results = body.results(block)
        if not any(self.plan.graph.nodes[i].gradient for i in block.nodes):
            body.unrecorded()
        lines = body.lines(results, 8, lambda texts: f"return {', '.join(texts)}")
        extra = ["site"] * loop.passes_dropout_site(self.plan) + ["modes"] * any("modes" in c.mode for c in calls)
        arguments, name = [*body.arguments.values(), *extra], loop.method(number)
        lines = self._gathering_first(name, arguments, body, lines, compiles=not calls)
        for call in calls:
            lines += ["", *self._segment(call, weights, body.dropout_sites)]
        return lines

    def _gathering_first(
        self, name: str, arguments: Sequence[str], body: FunctionBody, lines: Sequence[str], *, compiles: bool = True
    ) -> list[str]:
        """A method; if `body` has gathered weights as arguments, another one that gathers them and calls it.

        Compiled programs compile it if `compiles`: nothing inside of it is recomputed.
        """
        shapes = self._shapes(body.arguments, given=True, plan=body.plan)
        inner = name if not body.gathered else "compute" if name == "forward" else f"{name}_compute"
        self.compiled += [inner] if compiles else []
        if not body.gathered:
            return self._function(name, arguments, shapes, lines)
        gathers = [f"self.{attribute}()" for attribute in body.gathered.values()]
        returned = f"return self.{inner}({', '.join([*arguments, *gathers])})"
        outer = self._function(name, arguments, "", wrap(returned, 8))
        return [*outer, "", *self._function(inner, [*arguments, *body.gathered], shapes, lines)]

    def _dropout_sites(self, loop: Loop, number: int, block: Block) -> dict[int, str]:
        """The call sites of the dropouts in a turn of a loop."""
        random = random_calls(self.plan, block)
        return {i: loop.dropout_site(self.plan, number, block.first, i) for i in random}

    def _read(self, index: int) -> bool:
        return bool(self.plan.graph.consumers[index]) or index == self.plan.graph.loss

    def _function(
        self, name: str, arguments: Sequence[str], doc: str, lines: Sequence[str], axes: Sequence[str] | None = None
    ) -> list[str]:
        head = wrap(f"def {name}({', '.join(['self', *arguments])}):", 4)
        body = [*axes_line(lines, self.plan.axes if axes is None else axes, "mesh"), *lines]
        if reads_mesh(body):
            body.insert(0, "        mesh = self.mesh")
        return [*head, *([f'        """{doc}"""'] if doc else []), *body]

    def _shapes(self, arguments: Mapping[int, str], given: bool = False, plan: Plan | None = None) -> str:
        """The arguments' local shapes; `given`: in the layouts that all readers get."""
        plan = plan or self.plan
        parts = []
        for i, name in arguments.items():
            if i >= 0:
                layout = plan.choices[i].given if given else plan.choices[i].output
                local = local_part(plan, i, layout)
                parts.append(f"{name}: {local_shape_text(local)}")
        text = ", ".join(parts)
        return f"{text}." if len(text) < 100 else ""

    def _count(self, loss: int, name: str, own: frozenset[int], weights: dict[int, str]) -> list[str]:
        """The method that counts the labels of one micro-batch, computed from the inputs alone."""
        plan = self.plan
        node, choice = plan.graph.nodes[loss], plan.choices[loss]
        body = self._body(own, weights, {})
        results = [body.value(i, x) for i, x in list(zip(node.inputs, choice.inputs, strict=True))[1:]]
        call = body.call(loss)

        def returned(texts: Sequence[str]) -> str:
            return f"return {label_count(call, texts[0], texts[1] if len(texts) > 1 else None)}"

        lines = body.lines(results, 8, returned)
        used = body.read_arguments(results)
        method = f"count_labels{name.removeprefix('divisor')}"
        labels = local_part(plan, node.inputs[1], choice.inputs[1])
        split = sorted({i for a in range(len(labels.known.sizes)) for i in labels.splits(a)})
        self.divisors.append({"name": name, "method": method, "axes": [plan.axes[i] for i in split]})
        doc = (
            "The number of this rank's labels that count."
            if len(results) == 1
            else "The sum of the weights of this rank's labels."
        )
        return self._function(method, [*used, "**_"], doc, lines)
