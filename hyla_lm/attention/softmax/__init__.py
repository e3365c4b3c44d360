"""Kernels of softmax attention."""
