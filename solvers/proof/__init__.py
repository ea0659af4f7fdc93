"""Proofs that rules hold: verdicts on substitutions, decided by Z3."""
