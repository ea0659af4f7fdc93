"""One decomposition for every exact backend: parts of a network, what is asked of each, and how answers add up."""
