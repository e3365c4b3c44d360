"""Training of the paper's models on the device that is here: tokens/s, MFU, errors of kernels.

make bench-gpu [GINS="a.gin b.gin"]. A config is also timed with the
kernels that run anywhere, where those are others.
Status 1 if a kernel is not within its bound, as in hyla-lm calibrate.
"""

import argparse
import sys
import time

import jax

from hyla_lm.model.flops import model_flops_utilization, train_flops_per_token
from hyla_lm.tools.calibrate.kernels import check_kernels
from hyla_lm.tools.calibrate.steps import Subject, read_subject, time_step
from hyla_lm.tools.calibrate.timing import Budget

GINS = tuple(f"gin/c4_50m_{name}.gin" for name in ("softmax", "linear", "hyla"))
BUDGET = Budget(repeats=20, seconds=10.0)
MOST_SECONDS = 480.0
ANYWHERE = "ModelConfig.attention_implementation = 'blocked'"


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def worst_error(subject: Subject) -> float:
    """The largest share of a bound that a kernel's error takes; infinite for a kernel that fails.

    The bounds are those of hyla-lm calibrate.
    """
    length = subject.program.task.sequence_length
    checks = check_kernels(subject.experiment.model, length, subject.platform, say)
    shares = [
        (float("inf") if check.failure or error is None else error / check.bounds[name])
        for check in checks
        for name, error in (check.errors or {"output": None}).items()
    ]
    return max(shares)


def line(gin: str, subject: Subject) -> tuple[float, str]:
    """Tokens/s of a config, and what is printed of it."""
    measured = time_step(subject, BUDGET)
    tokens_per_second = measured.rate or 0.0
    task, model = subject.program.task, subject.experiment.model
    flops = train_flops_per_token(model, task.io, task.sequence_length)
    share = model_flops_utilization(tokens_per_second, flops)
    shown = "unknown" if share is None else f"{share:.1%}"
    kernels = ", ".join(subject.attention)
    text = f"{gin}: {kernels}: {tokens_per_second:,.0f} tokens/s, MFU {shown}"
    return tokens_per_second, f"{text}, spread {measured.timing.spread:.0%}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("gins", nargs="*", default=GINS)
    gins = parser.parse_args().gins
    started, worst = time.monotonic(), 0.0
    device = jax.devices()[0]
    print(f"{jax.device_count()} x {device.device_kind} ({device.platform})", flush=True)
    for gin in gins:
        chosen, anywhere = read_subject([gin], []), read_subject([gin], [ANYWHERE])
        error = worst_error(chosen)
        worst = max(worst, error)
        rate, text = line(gin, chosen)
        print(f"{text}; largest error {error:.0%} of its bound", flush=True)
        if anywhere.attention != chosen.attention:
            other, text = line(gin, anywhere)
            print(f"{text}; auto is {rate / other:.2f} times as fast", flush=True)
    seconds = time.monotonic() - started
    print(f"{seconds:.0f} s in all" + " (longer than meant)" * (seconds > MOST_SECONDS))
    return int(worst > 1)


if __name__ == "__main__":
    sys.exit(main())
