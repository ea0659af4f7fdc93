"""Meanings derived from the registered index notation: sums of products, opaque functions, linear functions.

The entry's `algebra` adds what the notation leaves open: which linear functions are multiples, and which operators keep
the size of dims that they need whole. An opaque function of a whole dim is a function of the row; a linear one is a sum
over the row, each element times an unknown that depends only on the operator and the place.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import reduce
from itertools import product

from ....model.graph.dtypes import FLOATS
from ....model.graph.notation import WHOLE, Access, Call, Term, accesses, parse
from ....model.graph.pcg import Node
from ....model.operators.operator import operator
from ..rule import Apply
from .indices import Index, every, number_of, places
from .scope import Scope
from .terms import HIT, Body, Fn, Place, Poly, constant, factor, is_zero, row
from .types import Mismatch, Stuck, Type, product_of, written
from .values import Application, ElementTask, Letters, Symbolic


def derived(scope: Scope, apply: Apply, values: Sequence[Symbolic]) -> list[Symbolic]:
    """The result of an operator of the registry. Raises Stuck if its notation is not enough."""
    entry = operator(apply.op)
    if entry.algebra.unprovable:
        raise Stuck(f"{apply.op} {entry.algebra.unprovable}")
    if entry.view or entry.creates or not entry.notation:
        raise Stuck(f"{apply.op} has no notation that says what it computes")
    needed = "value" if apply.op == "shift" else entry.algebra.multiple
    if isinstance(needed, str) and apply.get(needed) is None:
        raise Mismatch(f"{apply.op} lacks the attribute {needed}")
    resolve = scope.unifier.resolve
    fakes = tuple(
        Node("input", f"x{i}", shape=tuple(1 if not resolve(t) else 2 for t in v.dims)) for i, v in enumerate(values)
    )
    shape = (2,) * max((len(fake.shape) for fake in fakes), default=0)
    node = Node(apply.op, "y", tuple(range(len(values))), shape, "float64", scope.plain(apply, values))
    try:
        names = entry.named(node)
        text = entry.notation if isinstance(entry.notation, str) else entry.notation(node, fakes)
    except KeyError as error:
        raise Mismatch(f"{apply.op} lacks the attribute {error.args[0]}") from None
    except (ValueError, IndexError, TypeError) as error:
        raise Mismatch(f"{apply.op}: {error}") from None
    try:
        return [_Derivation(scope, apply, dict(zip(names, values, strict=True)), text).result()]
    except ValueError as error:
        if isinstance(error, Mismatch | Stuck):
            raise
        raise Mismatch(f"{apply.op}: {error}") from None


class _Derivation:
    """One application of an operator with a line of notation."""

    def __init__(self, scope: Scope, apply: Apply, values: Mapping[str, Symbolic], text: str) -> None:
        self.scope, self.apply, self.values = scope, apply, values
        line = parse(text)
        if line.sizes:
            raise Stuck(f"{apply.op} states sizes in its notation")
        self.name, self.algebra = scope.key(apply), operator(apply.op).algebra
        terms = [t for t in line.terms if _operands(t) <= values.keys()]
        self.spare: dict[str, int] = {}
        for term in terms:
            for access in accesses(term):
                self._measure(access)
        self.terms = [Term(self._all(t.sums), tuple(self._factor(f) for f in t.factors)) for t in terms]
        self.output: Letters = tuple(tuple(i.split()) for i in self._expand(line.output, None))
        self.order = list(values)
        self.inputs: dict[str, list[tuple[str, ...]]] = {}

    def _measure(self, access: Access) -> None:
        """Count the dims that `b..` stands for, from every operand that has it."""
        for a in (access, *(g for _, g in access.gathers)):
            rest = [i for i in a.indices if i.endswith("..")]
            spare = len(self.values[a.operand].dims) - (len(a.indices) - len(rest))
            if spare < 0 or (spare and not rest):
                raise Mismatch(f"{self.apply.op}: {a.operand} has {len(self.values[a.operand].dims)} dims")
            for name in rest:
                self.spare[name] = max(self.spare.get(name, 0), spare)

    def _expand(self, indices: Sequence[str], operand: str | None) -> tuple[str, ...]:
        out: list[str] = []
        for i in indices:
            if not i.endswith(".."):
                out.append(i)
                continue
            spare = self.spare.get(i, 0)
            if operand is not None:
                spare = len(self.values[operand].dims) - (len(indices) - 1)
            out += [f"{i[:-2]}.{k}" for k in reversed(range(spare))]
        return tuple(out)

    def _all(self, names: Sequence[str]) -> tuple[str, ...]:
        return self._expand(names, None)

    def _access(self, a: Access) -> Access:
        return Access(a.operand, self._expand(a.indices, a.operand), tuple((p, self._access(g)) for p, g in a.gathers))

    def _factor(self, f: Access | Call) -> Access | Call:
        if isinstance(f, Access):
            return self._access(f)
        return Call(f.linear, tuple(map(self._access, f.arguments)), self._all(f.indices))

    def result(self) -> Symbolic:
        unifier = self.scope.unifier
        reads = [a for t in self.terms for a in accesses(t)]
        reads += [g for a in reads for _, g in a.gathers]
        for a in reads:
            names = [() if i == WHOLE else tuple(i.split()) for i in a.indices]
            known = self.inputs.setdefault(a.operand, names)
            if known != names:
                raise Stuck(f"{self.apply.op} reads {a.operand} at two different indices")
        self._broadcast()
        summed = tuple(dict.fromkeys(n for t in self.terms for s in t.sums for n in s.split()))
        inputs = [tuple(self.inputs[name]) for name in self.order]
        application = Application(
            unifier, f"{self.apply.op}: ", [self.values[n] for n in self.order], inputs, self.output, summed
        )
        application.infer()
        for name, type_ in self._inside(application).items():
            if name in application.letters and not self.algebra.keeps_sizes:
                continue  # an operand determines it
            application.dim(type_, (), (name,))
            if application.letters[name].digits:
                raise Mismatch(f"{self.apply.op}: needs a dim whole that is cut")
        if self.algebra.table:
            for a in reads:
                for place, ids in a.gathers:
                    rows = application.letters[a.indices[place]].type
                    self.scope.lookups.append((unifier.phase, self.values[ids.operand], rows))
        return application.result(self._body)

    def _broadcast(self) -> None:
        """Remove the letters of dims of size 1 that meet larger ones."""
        resolve = self.scope.unifier.resolve
        sizes: dict[str, list[Type]] = {}
        for operand, names in self.inputs.items():
            for type_, dim in zip(self.values[operand].dims, names, strict=True):
                if len(dim) == 1:
                    sizes.setdefault(dim[0], []).append(resolve(type_))
        for operand, names in self.inputs.items():
            for k, (type_, dim) in enumerate(zip(self.values[operand].dims, names, strict=True)):
                if len(dim) == 1 and not resolve(type_) and any(sizes[dim[0]]):
                    names[k] = ()

    def _inside(self, application: Application) -> dict[str, Type]:
        """The types of indices into the results of functions."""
        found: dict[str, Type] = {}
        for term in self.terms:
            for f in term.factors:
                if not isinstance(f, Call) or not f.indices:
                    continue
                first = f.arguments[0]
                whole = [t for t, i in zip(self.values[first.operand].dims, first.indices, strict=True) if i == WHOLE]
                for k, name in enumerate(f.indices):
                    if self.algebra.keeps_sizes:
                        found[name] = whole[k]
                    else:
                        summed = [application.letters[n].type for n in application.summed]
                        sizes = ", ".join(written(self.scope.unifier.resolve(t)) for t in (*whole, *summed))
                        found[name] = self.scope.made(f"{self.name}[{sizes}][{k}]")
        return found

    def _body(self, tasks: ElementTask) -> Poly:
        total = Poly()
        for number, term in enumerate(self.terms):
            sums = [n for s in term.sums for n in s.split()]
            for known, variables in tasks.over(sums):
                parts = [self._value(f, tasks, known) for f in term.factors]
                total = total + reduce(lambda a, b: a * b, parts).total(variables).times(self._sign(number))
        return total * self._scale()

    def _sign(self, term: int) -> Fraction:
        return Fraction(-1 if self.apply.op == "sub" and term else 1)

    def _scale(self) -> Poly:
        """The reciprocal of a mean's divisor, otherwise 1."""
        if self.apply.op != "mean":
            return constant(1)
        if self.apply.get("count") is not None:
            size = self.scope.type_of(self.apply["count"])
        else:
            named = zip(self.values["x"].dims, self.inputs["x"], strict=True)
            dims = [dim for dim, name in named if name not in self.output]
            size = product_of(dims)
        return self.scope.share(size)

    def _value(self, f: Access | Call, tasks: ElementTask, known: Mapping[str, Index]) -> Poly:
        if isinstance(f, Access):
            value = tasks.read(self.order.index(f.operand), known)
            for place, ids in f.gathers:
                name = f.indices[place]
                index = known.get(name) or tasks.index[name]
                case, where = places(index)
                inner = tasks.read(self.order.index(ids.operand), known)
                number = number_of(index, self.scope.unifier) if self.algebra.table else None
                if self.scope.defined and self.algebra.table and _is_variable(index):
                    value = value * factor(Fn(HIT, (Body((), inner),), where))
                elif number is not None:
                    value = value * is_zero(inner + number.times(-1))
                else:
                    value = value * factor(Fn(f"hit{case}", (Body((), inner),), where))
            return value
        at = [places(known.get(name) or tasks.index[name]) for name in f.indices]
        inside = tuple(p for _, ps in at for p in ps)
        cases = "".join(f"[{case}]" for case, _ in at)
        if f.linear and self._exact():
            return self._linear(f, tasks, known, cases, inside)
        if self.apply.op == "shift":
            return tasks.read(0, known) + self.scope.number(self.apply["value"])
        name = self.algebra.function or self.name
        if not f.indices and not any(i == WHOLE for a in f.arguments for i in a.indices):
            values = [tasks.read(self.order.index(a.operand), known) for a in f.arguments]
            op, given = self.algebra.function or self.apply.op, dict(self.apply.attributes)
            return self.scope.function(op, *values, key=name, given=given)
        bodies: list[Body] = []
        for a in f.arguments:
            for whole, variables in self._rows(a):
                bodies.append(row(variables, tasks.read(self.order.index(a.operand), known, whole)))
            name += self._row_name(a)
        return factor(Fn(f"{name}{cases}", tuple(bodies), inside))

    def _exact(self) -> bool:
        """True if `L` is linear for these attributes: a conversion to integers is not."""
        return self.apply.op != "to" or self.apply.get("dtype") in FLOATS

    def _rows(self, a: Access) -> list[tuple[list[Index], tuple[tuple[str, str], ...]]]:
        """All indices along the whole dims of an argument."""
        dims = self.values[a.operand].dims
        whole = [list(every(self.scope.unifier.resolve(t))) for t, i in zip(dims, a.indices, strict=True) if i == WHOLE]
        return [([i for i, _ in choice], tuple(v for _, vs in choice for v in vs)) for choice in product(*whole)]

    def _row_name(self, a: Access) -> str:
        """Functions of rows also depend on their lengths."""
        dims = self.values[a.operand].dims
        whole = [written(self.scope.unifier.resolve(t)) for t, i in zip(dims, a.indices, strict=True) if i == WHOLE]
        return f"<{', '.join(whole)}>" if whole else ""

    def _linear(
        self, f: Call, tasks: ElementTask, known: Mapping[str, Index], cases: str, inside: tuple[Place, ...]
    ) -> Poly:
        multiple, total = self.algebra.multiple, Poly()
        for number, a in enumerate(f.arguments):
            for index, variables in self._rows(a):
                value = tasks.read(self.order.index(a.operand), known, index)
                if isinstance(multiple, int):
                    return value.times(multiple)
                if multiple is not None:
                    return value * self.scope.number(self.apply[multiple])
                here = [places(i) for i in index]
                name = f"{self.name}{self._row_name(a)}{number}{cases}" + "".join(f"[{case}]" for case, _ in here)
                kernel = factor(Fn(name, (), (*inside, *(p for _, ps in here for p in ps))))
                total = total + (kernel * value).total(variables)
        return total


def _is_variable(index: Index) -> bool:
    """True for an index that is one variable along a whole dim."""
    if len(index) != 1 or not isinstance(index[0][0], str):
        return False
    digit = index[0][1]
    return isinstance(digit, Place) and len(digit.terms) == 1 and digit == Place.of(digit.terms[0][0])


def _operands(term: Term) -> set[str]:
    found = {a.operand for a in accesses(term)}
    return found | {g.operand for a in accesses(term) for _, g in a.gathers}
