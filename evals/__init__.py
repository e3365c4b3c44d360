"""Evaluation suites: synthetic tasks that test whether attention generalises compositionally."""
