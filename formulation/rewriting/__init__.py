"""Rewritings of a graph by equality saturation: all of them in one graph, of which the plan takes one."""
