"""Whole train steps of the config, on all devices."""

from typing import Any

import jax

from hyla_lm.run.program import compile_step
from hyla_lm.tools.calibrate.subject import Subject
from hyla_lm.tools.calibrate.timing import Budget, Measurement, timed

GROUP = "step"
NAME = "train step"


def time_steps(subject: Subject, budget: Budget) -> Measurement:
    """Seconds of a step that is compiled, from random tokens on the devices to its new state."""
    laid_out = subject.program
    with jax.set_mesh(laid_out.mesh):
        program = compile_step(laid_out)  # type: ignore[arg-type]
        batch, state = program.to_devices(subject.batch()), program.init()

        def step() -> Any:
            nonlocal state
            state, output = program.train_step(state, batch)
            return state, output

        timing = timed(step, budget)
    return Measurement(GROUP, NAME, timing, work=float(laid_out.tokens_per_step), unit="tok")
