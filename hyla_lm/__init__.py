"""hyla_lm: decoder-only language models whose attention is a hypernetwork."""

__version__ = "0.1.0"
