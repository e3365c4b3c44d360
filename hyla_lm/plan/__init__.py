"""Predicts memory, speed and cost of a run on TPU v5e by compiling its step without a TPU."""
