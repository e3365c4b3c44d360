"""HYLA's kernels."""
