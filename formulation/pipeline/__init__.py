"""Schedules of pipelines: the problem, the schedules that have names, and what a schedule costs."""
