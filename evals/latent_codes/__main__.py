"""python -m evals.latent_codes --workdir=RUN: looks inside one trained run."""

from hyla_lm import ending
from hyla_lm.evals.latent_codes.look import main

if __name__ == "__main__":
    ending.process(main)
