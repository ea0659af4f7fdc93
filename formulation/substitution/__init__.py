"""Substitutions: rules between small graphs of operators, generated, proved and applied (Unity, OSDI 2022, §§3-5)."""
