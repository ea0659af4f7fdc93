"""What a proof covers, in words, and the equalities of sizes that only the target requires."""

from ...formulation.substitution.sizes import Size
from ...formulation.substitution.symbolic.infer import Typed, free_atoms
from ...formulation.substitution.symbolic.types import Type, Unifier, atoms_of
from ...formulation.substitution.trial import degrees


def extra_conditions(typed: Typed) -> tuple[str, str]:
    """Equalities of declared sizes that only the target, or only the outputs, require: (which, text)."""
    counts = degrees(typed)
    found = [(phase, text) for phase, atom, text in _equalities(typed) if atom not in counts]
    for phase in ("target", "outputs"):
        required = [text for where, text in found if where == phase]
        if required:
            return phase, " and ".join(required)
    return "", ""


def _equalities(typed: Typed) -> list[tuple[str, str, str]]:
    """(phase, atom, text) of every equality that binds a declared size."""
    unifier = typed.unifier
    out = []
    for phase, atom in unifier.equalities:
        if atom in unifier.sizes or atom in unifier.quotients:
            stated, found = _stated(unifier, atom), _found(unifier, unifier.resolve((atom,)))
            if stated != found and found[0].symbols <= unifier.declared | unifier.given:
                out.append((phase, atom, f"{_words(stated)} == {_words(found)}"))
        else:
            out.append((phase, atom, f"{atom} == {unifier.size((atom,))}"))
    return out


def _stated(unifier: Unifier, atom: str) -> tuple[Size, int]:
    """The declared size of an atom, whatever it is bound to: (size, divisor), rounded up."""
    size, by = unifier.quotient(atom)
    exact = size.rounded_up(by)
    return (size, by) if exact is None else (exact, 1)


def _words(stated: tuple[Size, int]) -> str:
    size, by = stated
    return f"({size}) / {by} rounded up" if by > 1 else str(size)


def _found(unifier: Unifier, type_: Type) -> tuple[Size, int]:
    """The size of a resolved type, in the same form."""
    if len(type_) == 1 and type_[0] in unifier.quotients:
        return _stated(unifier, str(type_[0]))
    return unifier.size(type_), 1


def covers(typed: Typed, stated: tuple[int, ...]) -> str:
    """The sizes and degrees for which a proof of this typing holds."""
    unifier, parts = typed.unifier, list[str]()
    counts = degrees(typed)
    fixed_by_use = [text for _, atom, text in _equalities(typed) if atom in counts]
    sizes = "all sizes" if set(free_atoms(typed)) - counts else "the stated sizes"
    if stated:
        parts.append(f"{sizes}, degree{'s' * (len(stated) > 1)} {', '.join(map(str, stated))} only")
    elif fixed_by_use:
        parts.append(f"{sizes}, degrees where {', '.join(fixed_by_use)}")
    elif counts:
        parts.append(f"{sizes}, all degrees")
    else:
        parts.append(sizes)
    equal = [text for phase, atom, text in _equalities(typed) if atom not in counts]
    equal += _shared(typed)
    stated_sizes = unifier.declared | unifier.sizes.keys() | unifier.quotients.keys()
    divided = [text for atom in sorted(stated_sizes & unifier.bound.keys()) if (text := _division(typed, atom))]
    divided = list(dict.fromkeys(divided))
    if equal or divided:
        parts.append("where " + " and ".join([*equal, *divided]))
    if unifier.narrowed:
        parts.append("where the target type-checks")
    if unifier.aligned:
        parts.append("where joined parts that meet are of equal sizes")
    return ", ".join(parts)


def _shared(typed: Typed) -> list[str]:
    """Declared sizes found to share a factor or part, as in `n == 2*m`."""
    unifier = typed.unifier
    having: dict[str, list[str]] = {}
    for atom in sorted(unifier.declared & unifier.bound.keys()):
        for part in dict.fromkeys(atoms_of(unifier.resolve((atom,)))):
            if part not in unifier.declared:
                having.setdefault(part, []).append(atom)
    pairs = {tuple(atoms) for atoms in having.values() if len(atoms) > 1}
    return [" and ".join(atoms) + " have a part in common" for atoms in sorted(pairs)]


def _division(typed: Typed, atom: str) -> str:
    """`d divides n`, if a declared size turned out to be d times something new."""
    unifier = typed.unifier
    type_ = unifier.resolve((atom,))
    known = [r for r in type_ if isinstance(r, int) or (isinstance(r, str) and r in unifier.declared)]
    new = [a for a in atoms_of(type_) if a not in unifier.declared]
    if not new or not known or len(known) == len(type_) or any(a in unifier.sizes for a in new):
        return ""
    name = atom if atom in unifier.declared else _words(_stated(unifier, atom))
    return f"{'*'.join(map(str, known))} divides {name}"
