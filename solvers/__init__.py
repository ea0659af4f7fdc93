"""Who answers: exact backends for the cost network, behind one protocol."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .protocol import Solver


class _Solvers(ModuleType):
    """`partita.solvers()` lists the backends, although importing any of them binds that name to this package."""

    def __call__(self) -> list[Solver]:
        from .protocol import solvers

        return list(solvers())


sys.modules[__name__].__class__ = _Solvers
