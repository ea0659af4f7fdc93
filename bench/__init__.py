"""Benchmarks and the baselines that plans are compared with."""
