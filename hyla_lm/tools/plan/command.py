"""hyla-lm plan: sets libtpu up before JAX is used, plans, prints."""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from hyla_lm.errors import UserError
from hyla_lm.tools.plan.calibration import Calibration, check_device, read_calibration
from hyla_lm.tools.plan.topology import Slice, check_libtpu, libtpu_settings

DOES_NOT_FIT = 1


def run(options: argparse.Namespace, bindings: list[str]) -> int:
    """Prints the plan; status 1 for one that does not fit."""
    topology = Slice(options.topology, options.slices)
    if options.compiles < 0:
        raise UserError(f"--compiles={options.compiles} must be at least 0.")
    if options.price_per_chip_hour is not None and options.price_per_chip_hour < 0:
        raise UserError("--price_per_chip_hour must be at least 0.")
    calibration = None
    if options.calibration is not None:
        calibration = read_calibration(options.calibration)
        check_device(calibration, topology.name)
    check_libtpu()
    with tempfile.TemporaryDirectory(prefix="hyla_lm_plan_") as folder:
        with libtpu_settings(Path(folder)):
            devices = topology.devices()
        plan = _plan(options, bindings, topology, devices, Path(folder), calibration)
    return _print(plan, options.json)


def _plan(
    options: argparse.Namespace,
    bindings: list[str],
    topology: Slice,
    devices: list[Any],
    dumps: Path,
    calibration: Calibration | None,
) -> dict[str, Any]:
    from hyla_lm.config.read_experiment import read_experiment
    from hyla_lm.tools.plan.plan import Options, make_plan

    experiment = read_experiment(options.gin_file, bindings)
    price = options.price_per_chip_hour
    asked = Options(topology, options.compiles, price, options.cache_dir, calibration)
    return make_plan(experiment, asked, devices, dumps, _say)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _print(plan: dict[str, Any], as_json: bool) -> int:
    from hyla_lm.tools.plan.advice import sentence
    from hyla_lm.tools.plan.report import show

    if as_json:
        print(json.dumps(plan, indent=1))
    elif plan["fits"]:
        show(plan)
    if not plan["fits"]:
        print(f"hyla-lm: {sentence(plan)}", file=sys.stderr)
        return DOES_NOT_FIT
    return 0
