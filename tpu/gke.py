"""Trains on GKE: fills in tpu/gke.yaml and applies it; hyla-lm tpu gke --help."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from string import Template

from hyla_lm import ending
from hyla_lm.cli.parser import Parser, parse
from hyla_lm.errors import UserError
from hyla_lm.tpu.cloud import ASK_SECONDS
from hyla_lm.tpu.commands import ENVIRONMENT
from hyla_lm.tpu.job import NAME, Slice, Training
from hyla_lm.tpu.programs import run_for_real

TEMPLATE = Path(__file__).with_name("gke.yaml")
SPOT = "cloud.google.com/gke-spot"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its status, as hyla_lm.ending counts them."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    options, bindings = parse(_parser(), argv)
    return ending.run("hyla-lm tpu gke", lambda: apply(options, bindings), options.debug)


def apply(options: argparse.Namespace, bindings: Sequence[str]) -> None:
    """Renders the JobSet and applies it, or prints it with --dry-run."""
    manifest = render(options, bindings)
    if options.dry_run:
        print(manifest, end="")
        return
    done = run_for_real(["kubectl", "apply", "-f", "-"], stdin=manifest, limit=ASK_SECONDS)
    if done.code:
        raise UserError(_refusal(done.errors))
    print(done.output, end="")


def render(options: argparse.Namespace, bindings: Sequence[str]) -> str:
    """The JobSet as YAML; values are written as JSON, which is valid YAML."""
    if not NAME.fullmatch(options.name):
        raise UserError(f"--name={options.name} must be at most 40 of a-z, 0-9 and -.")
    part = Slice(options.accelerator_type)
    training = Training(
        options.workdir, tuple(options.gin_file), tuple(bindings), tuple(options.env)
    )
    training.check()
    selector = {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
        "cloud.google.com/gke-tpu-topology": part.topology,
        **({SPOT: "true"} if options.spot else {}),
    }
    toleration = {"key": SPOT, "operator": "Equal", "value": "true", "effect": "NoSchedule"}
    variables = [entry.partition("=") for entry in (ENVIRONMENT, *training.environment)]
    values = {
        "name": options.name,
        "namespace": options.namespace,
        "restarts": options.max_restarts,
        "hosts": part.hosts,
        "chips": part.chips // part.hosts,
        "grace": options.grace_seconds,
        "service_account": options.service_account,
        "node_selector": selector,
        "tolerations": [toleration] if options.spot else [],
        "image": options.image,
        "command": ["hyla-lm", *training.arguments()],
        "environment": [{"name": n, "value": value} for n, _, value in variables],
    }
    filled = {name: json.dumps(value) for name, value in values.items()}
    return Template(TEMPLATE.read_text()).substitute(filled)


def _refusal(errors: str) -> str:
    line = (errors.strip().splitlines() or ["no message"])[-1].rstrip(".")
    if "no matches for kind" in errors:
        return f"The cluster has no JobSet ({line}): install it, as tpu/README.md says."
    if "onJobFailureMessagePatterns" in errors:
        return f"The cluster's JobSet is older than 0.10 ({line}): update it."
    if "orbidden" in errors:
        role = "roles/container.developer"
        return f"You may not do this in the cluster ({line}): ask its owner for {role}."
    return f"kubectl failed ({line}): see tpu/README.md for what the cluster needs."


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="hyla-lm tpu gke", description=__doc__)
    parser.add_argument("--dry-run", action="store_true", help="print the JobSet, apply nothing")
    parser.add_argument(ending.DEBUG, action="store_true", help="show every line of a failure")
    parser.add_argument("--name", required=True)
    parser.add_argument("--namespace", default="default")
    parser.add_argument("--image", required=True, help="container with hyla-lm and the gin files")
    parser.add_argument("--accelerator-type", default="v5litepod-16")
    parser.add_argument("--spot", action="store_true", help="nodes that may be taken away")
    parser.add_argument("--service-account", default="default", help="of Kubernetes")
    parser.add_argument("--max-restarts", type=int, default=20)
    parser.add_argument("--grace-seconds", type=int, default=120)
    parser.add_argument("--gin_file", action="append", default=[], help="may be repeated")
    parser.add_argument("--workdir", default="", help="gs:// folder of the run, or one all mount")
    parser.add_argument("--env", action="append", default=[], help="NAME=VALUE for the trainer")
    return parser
