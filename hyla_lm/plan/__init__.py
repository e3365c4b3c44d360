"""What a run on TPU v5e will need and cost, from compiling its train step without a TPU."""
