"""Space-time plans as programs: what every device does, its segments as functions, its repetitions as loops."""
