"""Fuzzy logic and SRAVEN: examples drawn on the device, splits, ambiguity."""
