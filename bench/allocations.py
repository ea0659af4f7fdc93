"""Bytes of tensors that are alive, counted by their storages: what an allocator would hold, the same in every run."""

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_ON_HOST = (torch.ops.aten.from_file.default,)
"""Functions whose tensors are outside device memory: files that programs swap to on a machine without a GPU."""


class Allocations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While this mode is on, in this thread: bytes now, and the most since `reset`.

    A storage counts from the operator that returns it until nothing refers to it any more, autograd included; views
    share it. What an operator allocates and frees within itself is not seen, nor is what is in a file.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._sizes: dict[int, int] = {}
        self._counts = True
        self.now_bytes = self.peak_bytes = 0

    def reset(self) -> None:
        """Measure the peak from now on."""
        self.peak_bytes = self.now_bytes

    @contextmanager
    def elsewhere(self) -> Iterator[None]:
        """Tensors made in this context are in another memory, and do not count."""
        self._counts = False
        try:
            yield
        finally:
            self._counts = True

    def leave_out(self, tensors: Iterable[Tensor]) -> None:
        """Ignore these tensors, which were there before, and views of them."""
        for tensor in tensors:
            self._see(tensor, False)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(made):
            if isinstance(leaf, Tensor):
                self._see(leaf, self._counts and func not in _ON_HOST)
        return made

    def _see(self, tensor: Tensor, counts: bool) -> None:
        storage = tensor.untyped_storage()
        number = storage._cdata
        if number not in self._sizes:
            self._sizes[number] = storage.nbytes() if counts else 0
            self.now_bytes += self._sizes[number]
            self.peak_bytes = max(self.peak_bytes, self.now_bytes)
            weakref.finalize(storage, self._forget, number)

    def _forget(self, number: int) -> None:
        self.now_bytes -= self._sizes.pop(number)
