"""Trains on GKE: fills in tpu/gke.yaml and applies it."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from string import Template

from hyla_lm import ending
from hyla_lm.errors import UserError
from hyla_lm.tpu.cloud import ASK_SECONDS
from hyla_lm.tpu.commands import ENVIRONMENT
from hyla_lm.tpu.gcloud import detail_of, run_for_real
from hyla_lm.tpu.job import NAME, Slice, Training, hide

TEMPLATE = Path(__file__).with_name("gke.yaml")
SPOT = "cloud.google.com/gke-spot"


def apply(options: argparse.Namespace, bindings: Sequence[str]) -> None:
    """Renders the JobSet and applies it, or prints it with --dry-run."""
    training = Training(
        options.workdir, tuple(options.gin_file), tuple(bindings), tuple(options.env)
    )
    if options.dry_run:
        print(render(options, training.without_secrets()), end="")
        return
    manifest = render(options, training)
    done = run_for_real(["kubectl", "apply", "-f", "-"], stdin=manifest, limit=ASK_SECONDS)
    if done.code:
        raise UserError(
            f"kubectl: {hide(detail_of(done), training.secrets)}; tpu/README.md says what the "
            "cluster needs."
        )
    print(done.output, end="")


def render(options: argparse.Namespace, training: Training) -> str:
    """The JobSet as YAML; values are written as JSON, which is valid YAML."""
    training.check()
    if not NAME.fullmatch(options.name):
        raise UserError(f"--name={options.name} must be at most 40 of a-z, 0-9 and -.")
    part = Slice(options.accelerator_type)
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `hyla-lm tpu gke`."""
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
