"""The outer search: pipelines, placements and micro-batches around the cost networks of stages."""
