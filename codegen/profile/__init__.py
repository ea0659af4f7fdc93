"""Measures the machine at hand, and writes the machine file that predictions for it are made with."""
