"""Attention with a linear value network (paper Eq. 4)."""
