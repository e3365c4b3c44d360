"""Softmax attention by the flash kernels that JAX keeps."""
