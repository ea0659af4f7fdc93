"""Shortest schedules of pipelines, with proofs."""
