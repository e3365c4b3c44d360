"""Trains on Cloud TPU v5e; @FILE reads options from a file."""

import argparse
import sys
from collections.abc import Sequence

from hyla_lm.tpu import gke, launch


def parser() -> argparse.ArgumentParser:
    """The parser of all commands of the launcher."""
    return launch.parser()


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its status."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    return gke.main(argv[1:]) if argv[:1] == ["gke"] else launch.main(argv)
