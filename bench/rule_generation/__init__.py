"""Finds substitution rules: compare all small graphs over operator sets, prune and write (TASO §3, Unity §4)."""
