"""Measures the device that is here: kernels, parts of a step, whole steps, links, peaks."""
