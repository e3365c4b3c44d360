"""Checks a TPU host before a run: python -m hyla_lm.tpu.doctor --accelerator-type=… --bucket=gs://…"""

import argparse
import dataclasses
import json
import platform
from collections.abc import Callable, Sequence
from pathlib import Path

from hyla_lm import ending
from hyla_lm.cli.parser import Parser
from hyla_lm.tpu import checks
from hyla_lm.tpu.checks import FAIL, Check
from hyla_lm.tpu.job import Slice

PYPROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"
PACKAGES = ("hyla_lm", "jax", "libtpu")


def main(
    arguments: Sequence[str] | None = None,
    look: Callable[[argparse.Namespace], list[Check]] | None = None,
) -> int:
    """Runs the checks and returns the status: 1 if one fails, else as hyla_lm.ending counts."""
    options = _parser().parse_args(arguments)
    return ending.run("tpu.doctor", lambda: show(options, (look or look_at_host)(options)))


def show(options: argparse.Namespace, found: Sequence[Check]) -> int:
    """Prints the table; status 1 if a check failed."""
    if options.json:
        lines = [dataclasses.asdict(check) for check in found]
        print(json.dumps({"host": platform.node(), "checks": lines}))
    else:
        print(table(found))
    return int(any(check.level == FAIL for check in found))


def look_at_host(options: argparse.Namespace) -> list[Check]:
    """All checks, ordered so that a failure explains the later ones."""
    part = Slice(options.accelerator_type)
    return [
        checks.check_holders(),
        checks.check_python(PYPROJECT),
        *[checks.check_package(name, PYPROJECT) for name in PACKAGES],
        checks.check_devices(part),
        *([checks.check_bucket(options.bucket)] if options.bucket else []),
        checks.check_clock(),
        checks.check_disk(Path.home()),
    ]


def table(found: Sequence[Check]) -> str:
    """One line for each check, followed by what to do if something is wrong."""
    lines = [platform.node()]
    for check in found:
        lines.append(f"{check.level:<5} {check.name:<8} {check.found}")
        if check.advice:
            lines.append(f"{'':<14} -> {check.advice}")
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python -m hyla_lm.tpu.doctor", description=__doc__)
    parser.add_argument("--accelerator-type", default="v5litepod-16")
    parser.add_argument("--bucket", default="", help="folder that must be writable")
    parser.add_argument("--json", action="store_true", help="one line for programs")
    return parser


if __name__ == "__main__":
    ending.process(main)
