"""A run and its folder: program, duties, checkpoints, logs, evaluation, summary."""
