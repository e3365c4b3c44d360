"""Softmax over the keys that a query sees (paper Eq. 1), and attention with it on TPU."""
