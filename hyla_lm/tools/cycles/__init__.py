"""Counts the cycles of compiled TPU programs."""
