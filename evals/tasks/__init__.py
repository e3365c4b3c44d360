"""Fuzzy logic, SRAVEN, Match3, hyperteacher: examples drawn on the device, splits, ambiguity."""
