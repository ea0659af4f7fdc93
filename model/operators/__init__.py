"""The operators, one family per file; the registry imports all `families` when it is first read."""
