"""The cost network that every solver reads, its files and checks."""
