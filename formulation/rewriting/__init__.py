"""Equality saturation: all rewritings of a graph in one graph, from which the plan chooses."""
