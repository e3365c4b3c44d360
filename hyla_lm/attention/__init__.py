"""Attention: the request, the list of kernels, and the kernels by kind."""
