"""Operators whose result has a size that depends on the data, or is a number: refused, with what to write instead."""

from dataclasses import dataclass

from ..translation import A, Index, Rule, T, Value


@dataclass(frozen=True, slots=True)
class Selected:
    """The entries of `x` that `mask` selects, in row-major order; they have the same shape."""

    x: Index
    mask: Index


def _refused(call: str, instead: str) -> Rule:
    def rule(t: T, a: A) -> Value:
        raise t.refusal(f"{call}, whose size depends on the data,", instead)

    return rule


def _number(t: T, a: A) -> Value:
    """A Python number made of a tensor's value; one that nothing reads, as in a message, is left out."""
    if t.unread():
        return []
    raise t.refusal(
        "a Python number made of a tensor's value", "keep it a tensor, or give the number to the module as it is built"
    )


def _masked_select(t: T, a: A) -> Value:
    """Refused but as labels of a CTC loss, which has a form with known sizes."""
    x, mask = a["self"], a["mask"]
    readers = [packet for packet in t.readers() if packet not in ("sym_size", "")]
    if set(readers) == {"ctc_loss"} and t.shape(x) == t.shape(mask):
        return Selected(x, mask)
    return _refused("masked_select", "use torch.where(mask, x, 0), and divide by mask.sum() for a mean")(t, a)


_POSITIONS = "compute all entries and choose with torch.where(mask, a, b), or take a fixed number with topk"

TABLE: dict[str, Rule] = {
    "item": _number,
    "_local_scalar_dense": _number,
    "nonzero": _refused("nonzero", _POSITIONS),
    "nonzero_numpy": _refused("nonzero", _POSITIONS),
    "argwhere": _refused("argwhere", _POSITIONS),
    "masked_select": _masked_select,
    "bincount": _refused("bincount", "use torch.zeros(n).index_add(0, ids, ones), or one_hot(ids, n).sum(0)"),
    **dict.fromkeys(
        ["unique_dim", "_unique", "_unique2", "unique_consecutive", "unique_dim_consecutive"],
        _refused("unique", "compute it before, and give it as an input"),
    ),
    **dict.fromkeys(
        ["_pack_padded_sequence", "_pad_packed_sequence"],
        _refused("a packed sequence", "give padded sequences, and mask what is behind their ends"),
    ),
}
