"""How rules are found: all small graphs over operator sets, compared, pruned and written (TASO §3, Unity §4)."""
