"""Rules with parallel operators, derived from the layouts and moves among which the search chooses."""
