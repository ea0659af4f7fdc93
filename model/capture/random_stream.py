"""The stream of torch's CPU generator while a constructor runs on tensors without memory, which draw nothing."""

# mypy: disable-error-code="no-untyped-call"
# (jumps are program text without types)

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from ..errors import PartitaError
from ..initial_values import SERIAL, draws
from ..mersenne_twister import advance


@dataclass(frozen=True, slots=True)
class Position:
    """A place in the stream of a seed: after `offset` numbers of 32 bits. `seed` None: that of the run.

    `pair`: the second normal number of a pair that was drawn there is kept for the next that is drawn one by one.
    """

    seed: int | None
    offset: int
    pair: int | None = None


class RandomStream:
    """Where the stream is. Whoever seeds the default generator, or restores its state, is noticed by its state.

    Real numbers are drawn as marks: each draw of the constructor that needs no memory moves the generator by one.
    """

    def __init__(self, seed: int) -> None:
        torch.default_generator.manual_seed(seed)
        self.position: Position | None = Position(None, 0)
        self.state = self._state()
        self.known: dict[bytes, Position | None] = {self.state: self.position}

    def _state(self) -> bytes:
        with _disable_current_modes():
            return torch.default_generator.get_state().numpy().tobytes()

    def now(self, generator: Any = None) -> Position | None:
        """The position; None if unknown, or of another generator."""
        if generator is not None and generator is not torch.default_generator:
            return None
        state = self._state()
        if state != self.state:
            self.state = state
            if state not in self.known:
                seed = torch.default_generator.initial_seed()
                with _disable_current_modes():
                    fresh = torch.Generator().manual_seed(seed).get_state().numpy().tobytes()
                self.known[state] = Position(seed, 0) if state == fresh else None
            self.position = self.known[state]
        return self.position

    def drew(self, kind: str, count: int, dtype: str, contiguous: bool) -> None:
        """Move on by a draw of `count` elements; of an unknown `kind` the position is lost."""
        self.position = None if self.position is None else after(self.position, kind, count, dtype, contiguous)
        if self._state() == self.state:
            with _disable_current_modes():
                torch.empty(1, device="cpu").uniform_()
        self.state = self._state()
        self.known[self.state] = self.position


def after(at: Position, kind: str, count: int, dtype: str, contiguous: bool) -> Position | None:
    if kind not in ("uniform", "normal"):
        return at if count == 0 else None
    if kind == "uniform" or (count >= SERIAL and contiguous):
        return Position(at.seed, at.offset + draws(kind, count, dtype), at.pair)
    fresh = count - (at.pair is not None)  # a pair takes two numbers of 64 bits
    if fresh <= 0:
        return Position(at.seed, at.offset, None if count else at.pair)
    pairs = -(-fresh // 2)
    end = at.offset + 4 * pairs
    return Position(at.seed, end, end - 4 if fresh % 2 else None)


def positioned(generator: torch.Generator, position: Position | None, seed: int) -> None:
    """Seed a generator and move it to a position; `seed` is that of the run. PartitaError: the position is unknown."""
    if position is None:
        raise PartitaError("the constructor draws random numbers of unknown count before")
    generator.manual_seed(seed if position.seed is None else position.seed)
    advance(generator, position.offset if position.pair is None else position.pair)
    if position.pair is not None:
        torch.empty(1).normal_(generator=generator)
