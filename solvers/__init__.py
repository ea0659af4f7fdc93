"""Exact solvers of cost networks, behind one protocol."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .protocol import Solver


class _Solvers(ModuleType):
    """Makes the package callable: importing a backend binds `partita.solvers` to it, yet `solvers()` lists them."""

    def __call__(self) -> list[Solver]:
        from .protocol import solvers

        return list(solvers())


sys.modules[__name__].__class__ = _Solvers
