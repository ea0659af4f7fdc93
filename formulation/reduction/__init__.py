"""Reduction programs: how a sum over axes of a mesh is made of collectives over groups (P², MLSys 2022)."""
