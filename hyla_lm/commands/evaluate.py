"""hyla-lm evaluate."""

import argparse
import json

from hyla_lm.commands.trained_run import add_run

HELP = "validation metrics of a checkpoint"
add_arguments = add_run


def run(options: argparse.Namespace, bindings: list[str]) -> None:
    from hyla_lm.parallel import multihost
    from hyla_lm.running.restored import restore

    with multihost.joined(options.workdir):
        metrics = restore(options, bindings).evaluate()
        if multihost.is_lead():
            print(json.dumps(metrics, indent=1))
