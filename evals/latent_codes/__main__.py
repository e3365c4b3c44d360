"""python -m evals.latent_codes --workdir=RUN: looks inside one trained run."""

import sys

from hyla_lm.evals.latent_codes.look import main

sys.exit(main())
