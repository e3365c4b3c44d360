"""python -m evals.latent_codes --workdir=RUN: looks inside one trained run."""

import sys

from evals.latent_codes.look import main

sys.exit(main())
