"""What a module's constructor writes into weights and buffers, recorded without memory for them.

The constructor runs on fake tensors that claim to be on the CPU, since constructors leave out what they would draw into
meta tensors. Every call on tensors is kept. What ranks can do by rows is understood (`contents`); any other tensor is
computed by the calls that it depends on. Where the constructor looks at a number, that is computed as well, so it takes
the path that it takes with real tensors.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from ..errors import PartitaError
from ..initial_values import Write
from .contents import Contents, Ref, drawn, dtype_name
from .random_stream import Position, RandomStream, positioned
from .rejected import Rejected

_Given: TypeAlias = tuple[tuple[Any, ...], Mapping[str, Any]]
"""Arguments and options of a call, with a `Ref` for every tensor."""


@dataclass(frozen=True, slots=True)
class _Record:
    """A call that makes or changes tensors; `made` are results with new memory, `changed` the storages written to."""

    function: Any
    arguments: _Given
    made: tuple[tuple[int, Ref], ...]
    changed: tuple[int, ...]
    position: Position | None


class Construction(TorchDispatchMode):
    """The calls of a constructor, in order, after torch.manual_seed(seed)."""

    def __init__(self, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seed = seed
        self._stream = RandomStream(seed)
        self._contents = Contents()
        self._rejected = Rejected(seed)
        self._records: list[_Record] = []
        self._given: dict[int, Tensor] = {}  # storages that were there before
        self._numbers: dict[int, int] = {}  # of storages, by their address
        self._held: list[Any] = []  # so that no address is used again

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            return self._number(self._ref(args[0]))
        options = dict(kwargs or {})
        random = torch.Tag.nondeterministic_seeded in func.tags
        generator = options.get("generator")
        position = self._stream.now(generator) if random else None
        given: _Given = pytree.tree_map_only(Tensor, self._ref, (args, options))
        known = len(self._contents.of_storage)
        result = func(*args, **options)
        results = [x for x in pytree.tree_leaves(result) if isinstance(x, Tensor)]
        refs = [self._ref(x, made=True) for x in results]
        made = tuple((place, ref) for place, ref in enumerate(refs) if ref.storage >= known)
        changed = _written(func, *given)
        if made or changed:
            self._records.append(_Record(func, given, made, tuple(ref.storage for ref in changed), position))
            self._follow(func, given, made, changed, position)
        if (
            random and generator is None and any(x.device.type == "cpu" for x in results)
        ):  # not on meta: it draws nothing
            draw = drawn(_name(func), *given, position)
            self._stream.drew(draw.kind if draw else "", refs[0].count, dtype_name(refs[0].dtype), refs[0].contiguous)
        return result

    def _ref(self, x: Tensor, made: bool = False) -> Ref:
        """A tensor, whose storage gets a number when it is first seen; `made`: by a call."""
        storage = x.untyped_storage()
        number = self._numbers.get(storage._cdata)
        if number is None:
            number = self._numbers[storage._cdata] = len(self._contents.of_storage)
            self._held.append(StorageWeakRef(storage))  # type: ignore[no-untyped-call]
            self._contents.of_storage[number] = None
            if not made and not x.is_meta and not isinstance(x, FakeTensor):
                self._given[number] = x.detach()
        return Ref(number, tuple(map(int, x.shape)), tuple(x.stride()), int(x.storage_offset()), x.dtype)

    def _follow(
        self,
        func: Any,
        given: _Given,
        made: tuple[tuple[int, Ref], ...],
        changed: list[Ref],
        position: Position | None,
    ) -> None:
        """Let the contents of memory follow a call; several results or changes are not understood."""
        contents, name = self._contents, _name(func)
        contents.order = len(self._records)
        draw = drawn(name, *given, position)
        if len(made) + len(changed) > 1:
            for ref in (*changed, *(ref for _, ref in made)):
                contents.of_storage[ref.storage] = None
                contents.beyond.pop(ref.storage, None)
        elif changed:
            contents.change(name, changed[0], *given, draw)
        else:
            contents.make(name, made[0][1], *given, draw)

    def _number(self, ref: Ref) -> bool | int | float:
        """The value of a tensor of one element, at which the constructor looks."""
        value = self._contents.value(ref)
        if value is not None and ref.dtype == torch.bool:
            return bool(value)
        beyond = self._contents.beyond.get(ref.storage)
        if beyond is not None:
            return self._rejected.any(beyond)
        return self._computed(ref).item()

    def writes(self, name: str, tensor: Tensor) -> list[tuple[int, Position | None, Write]] | None:
        """See `Contents.writes`."""
        return self._contents.writes(name, self._ref(tensor))

    def unset(self, tensor: Tensor) -> bool:
        """True if the constructor leaves some elements as they were in memory."""
        return self._contents.unset(self._ref(tensor))

    def value(self, tensor: Tensor) -> Tensor:
        """The values of a tensor. Raises PartitaError where they cannot be known."""
        return self._computed(self._ref(tensor)).clone()

    def _computed(self, ref: Ref) -> Tensor:
        """A tensor, by the calls that it depends on."""
        needed, chosen = {ref.storage}, []
        for record in reversed(self._records):
            if not needed.isdisjoint((*record.changed, *(made.storage for _, made in record.made))):
                chosen.append(record)
                needed |= {x.storage for x in pytree.tree_leaves(record.arguments) if isinstance(x, Ref)}
        storages = {number: x for number, x in self._given.items() if number in needed}
        with _disable_current_modes(), torch.no_grad(), torch.random.fork_rng(devices=[]):
            for record in reversed(chosen):
                _repeat(record, storages, self.seed)
            return _view(storages, ref)


def _name(func: Any) -> str:
    return str(func._schema.name).removeprefix("aten::")


def _written(func: Any, args: tuple[Any, ...], options: Mapping[str, Any]) -> list[Ref]:
    """The tensors that a call writes to."""
    named = zip(func._schema.arguments, args, strict=False)
    given = [*named, *((a, options[a.name]) for a in func._schema.arguments if a.name in options)]
    return [x for a, x in given if a.alias_info is not None and a.alias_info.is_write and isinstance(x, Ref)]


# Calls once more, on tensors with memory


def _view(storages: Mapping[int, Tensor], ref: Ref) -> Tensor:
    if ref.storage not in storages:
        raise PartitaError("a tensor without values that no call of the constructor made")
    memory = storages[ref.storage].untyped_storage()
    return torch.empty(0, dtype=ref.dtype).set_(memory, ref.offset, ref.shape, ref.stride)


def _repeat(record: _Record, storages: dict[int, Tensor], seed: int) -> None:
    """Run a call on the CPU."""

    def real(x: Any) -> Any:
        return _view(storages, x) if isinstance(x, Ref) else torch.device("cpu") if isinstance(x, torch.device) else x

    args, options = pytree.tree_map(real, record.arguments)
    if torch.Tag.nondeterministic_seeded in record.function.tags:
        positioned(torch.default_generator, record.position, seed)
    results = [x for x in pytree.tree_leaves(record.function(*args, **options)) if isinstance(x, Tensor)]
    for place, ref in record.made:
        x = results[place]
        if x.stride() != ref.stride or x.storage_offset() != ref.offset:  # as fake tensors have it
            memory = torch.empty_strided(ref.shape, ref.stride, dtype=ref.dtype)
            x = memory.copy_(x) if not ref.offset else x
        storages[ref.storage] = x
