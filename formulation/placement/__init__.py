"""Where the axes of a mesh lie on the levels of a machine."""

from .placement import Placement, arrangements, groups, of_rows, placements

__all__ = ["Placement", "arrangements", "groups", "of_rows", "placements"]
