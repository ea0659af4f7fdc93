"""Rejection sampling of truncated normals: planning replays the draws in chunks to count the rounds."""

from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from ..errors import PartitaError
from .contents import Beyond, Piece
from .random_stream import positioned

CHUNK = 1 << 20
"""Elements that are drawn at a time, whole blocks of 16."""


class Rejected:
    """The elements that are still beyond the ends after some rounds; `seed` is that of the run."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._left: dict[tuple[Piece, float, float], tuple[int, Tensor]] = {}  # the first round -> rounds, elements

    def any(self, beyond: Beyond) -> bool:
        """True if some elements are beyond the ends after all rounds of their piece."""
        piece = beyond.piece
        first = replace(piece, within=None, rounds=1)
        with _disable_current_modes(), torch.no_grad():
            done, left = self._left.get((first, beyond.low, beyond.high), (0, torch.arange(0)))
            for number in range(done, piece.rounds):
                found = self._beyond(first, number, beyond)
                left = left[found[left]] if number else found.nonzero().flatten()
            self._left[first, beyond.low, beyond.high] = piece.rounds, left
            return len(left) > 0

    def _beyond(self, piece: Piece, number: int, beyond: Beyond) -> Tensor:
        """A boolean for every element of a round."""
        if piece.position is None:
            raise PartitaError("the constructor draws random numbers of unknown count before")
        generator, found = torch.Generator(), torch.empty(piece.count, dtype=torch.bool)
        at = replace(piece.position, offset=piece.position.offset + number * piece.draws, pair=None)
        positioned(generator, at, self.seed)
        starts = [*range(0, max(1, piece.count - 15), CHUNK), piece.count]  # the last has a whole block
        for start, stop in pairwise(starts):
            x = torch.empty(stop - start, dtype=piece.dtype).normal_(*piece.numbers, generator=generator)
            found[start:stop] = (x < beyond.low) | (x > beyond.high)
        return found
