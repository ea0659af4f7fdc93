"""Reduction programs: sums over mesh axes as sequences of grouped collectives (P², MLSys 2022)."""
