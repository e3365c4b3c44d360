"""What the quickstart pays for norms by layer and attention diagnostics.

Usage: bench_curves.py [STEPS]. Two runs of gin/quickstart.gin, with everything measured and with
nothing, take turns of TURN steps in one process. Ends with 1 if steps and diagnostics together take
LARGEST_SHARE longer. The compiler is left out.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

import jax

from hyla_lm.config.read_experiment import read_experiment
from hyla_lm.run.due_actions import DUE_ACTIONS, diagnose_attention
from hyla_lm.run.folder import RunFolder
from hyla_lm.run.program import make_program
from hyla_lm.run.run import Run
from hyla_lm.run.watchdog import Watchdog

TURN, LARGEST_SHARE = 40, 0.03
PLAIN = ["LogConfig.layers = False", "LogConfig.details_every = 0"]
# Neither evaluates nor saves; diagnostics are timed separately.
BOTH = [f"{name} = 1000000" for name in ("TrainConfig.eval_every", "CheckpointConfig.every")]
BOTH += ["TrainConfig.steps = 1000000"]


class Trained:
    """A run that trains some steps when it is its turn."""

    def __init__(self, workdir: Path, bindings: list[str], stack: ExitStack):
        experiment = read_experiment(["gin/quickstart.gin"], [*BOTH, *bindings])
        folder = stack.enter_context(closing(RunFolder(str(workdir))))
        watchdog = stack.enter_context(closing(Watchdog(0, folder.path)))
        program = make_program(experiment)
        self.run = stack.enter_context(Run(program, folder, watchdog, DUE_ACTIONS))
        self._step = 0

    def seconds(self, steps: int) -> tuple[float, float]:
        """The seconds of as many steps, each as in the loop of a run; those of the processor."""
        run, begun, begun_cpu = self.run, time.monotonic(), time.process_time()
        run.clock.restart()
        for _ in range(steps):
            self._step += 1
            batch = next(run.batches)
            run.state, output = run.program.train_step(run.state, run.program.to_devices(batch))
            run.log.record(self._step, output, batch["row"])
        run.log.flush()
        jax.block_until_ready(run.state)
        return time.monotonic() - begun, time.process_time() - begun_cpu

    def diagnose(self) -> None:
        diagnose_attention(self.run, self._step)


def timed(function: Callable[[], None]) -> float:
    begun = time.monotonic()
    function()
    return time.monotonic() - begun


def main() -> int:
    turns = int(sys.argv[1] if len(sys.argv) > 1 else 1200) // TURN
    every = read_experiment(["gin/quickstart.gin"], []).log.details_every
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        plain = Trained(home / "plain", PLAIN, stack)
        measuring = Trained(home / "measuring", [], stack)
        for one in (plain, measuring):
            one.seconds(TURN)
        measuring.diagnose()
        pairs, of_cpu = [], []
        for turn in range(turns):
            order = (plain, measuring) if turn % 2 else (measuring, plain)
            found = {one: one.seconds(TURN) for one in order}
            (with_all, with_cpu), (without, without_cpu) = found[measuring], found[plain]
            pairs.append((with_all, without))
            of_cpu.append((with_cpu, without_cpu))
        looks = [timed(measuring.diagnose) for _ in range(5)]
    step = statistics.median(of for _, of in pairs) / TURN
    of_steps = statistics.median(a / b for a, b in pairs) - 1
    cpu = statistics.median(a / b for a, b in of_cpu) - 1
    of_looks = statistics.median(looks) / (every * step)
    share = of_steps + of_looks
    print(f"a step {1e3 * step:.2f} ms; {turns} pairs of turns of {TURN} steps")
    print(f"norms {of_steps:+.2%} (quartiles {quartiles(pairs)})")
    print(f"  of processor time {cpu:+.2%} (quartiles {quartiles(of_cpu)})")
    print(f"diagnostics {statistics.median(looks):.3f} s every {every} steps {of_looks:+.2%}")
    print(f"together {share:+.2%} (at most {LARGEST_SHARE:.0%})")
    return int(share > LARGEST_SHARE)


def quartiles(pairs: list[tuple[float, float]]) -> str:
    low, _, high = statistics.quantiles((a / b - 1 for a, b in pairs), n=4)
    return f"{low:+.2%} to {high:+.2%}"


if __name__ == "__main__":
    sys.exit(main())
