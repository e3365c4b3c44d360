"""hyla-lm calibrate: measures the device that is here, prints tables, writes one JSON file."""

import argparse
import json
import sys
from pathlib import Path

import jax

from hyla_lm.errors import UserError
from hyla_lm.storage import write_whole
from hyla_lm.tools.calibrate.kernels import Check, check_kernels
from hyla_lm.tools.calibrate.links import time_links
from hyla_lm.tools.calibrate.parts import time_parts
from hyla_lm.tools.calibrate.peaks import time_peaks
from hyla_lm.tools.calibrate.prediction import compared, planning, topology_of
from hyla_lm.tools.calibrate.report import as_json, show
from hyla_lm.tools.calibrate.steps import time_steps
from hyla_lm.tools.calibrate.subject import Subject, read_subject
from hyla_lm.tools.calibrate.timing import FEWEST, Budget, Measurement

A_KERNEL_IS_OFF = 1


def run(options: argparse.Namespace, bindings: list[str]) -> int:
    """Measures and writes; status 1 if a kernel is not within its bound."""
    if options.repeats < FEWEST:
        raise UserError(f"--repeats={options.repeats} must be at least {FEWEST}.")
    _check_output(options.output)
    subject = read_subject(options.gin_file, bindings)
    default = f", the default on {subject.platform}" if subject.is_default else ""
    _say(f"config: {', '.join(subject.gin_files)}{default}")
    with planning(subject.devices, subject.gin_files, bindings) as plan:
        checks, found = _measured(subject, Budget(options.repeats))
        _say("waiting for what hyla-lm plan predicts")
        prediction = plan.result()
    content = as_json(subject, checks, compared(found, prediction.plan), prediction)
    show(content)
    text = json.dumps(content, indent=1, allow_nan=False) + "\n"
    write_whole(options.output, text.encode())
    print(f"wrote {options.output}")
    return _verdict(checks)


def _measured(subject: Subject, budget: Budget) -> tuple[list[Check], list[Measurement]]:
    model, mesh = subject.experiment.model, subject.program.mesh
    length, device = subject.program.task.sequence_length, subject.devices[0]
    try:
        checks = check_kernels(model, length, subject.platform, _say)
        _say("peaks of one device")
        found = list(time_peaks(device, model.dtype, budget))
        if mesh.size > 1:
            _say("collectives")
            found += time_links(mesh, topology_of(subject.devices), budget)
        found += time_parts(subject, budget, _say)
        _say("whole train steps")
        return checks, [*found, time_steps(subject, budget)]
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        train = subject.experiment.train
        raise UserError(
            f"the device lacks memory for TrainConfig.batch_size = {train.batch_size}: lower it, "
            "or raise TrainConfig.accumulate_steps."
        ) from error


def _verdict(checks: list[Check]) -> int:
    off = [check for check in checks if not check.is_within]
    if not off:
        print(f"all {len(checks)} kernel checks are within their bounds")
        return 0
    named = ", ".join(dict.fromkeys(check.kernel for check in off))
    print(f"{len(off)} of {len(checks)} kernel checks are NOT within their bounds: {named}")
    return A_KERNEL_IS_OFF


def _check_output(path: str) -> None:
    place = Path(path)
    if "://" not in path and (place.is_dir() or not place.absolute().parent.is_dir()):
        raise UserError(f"--output={path} must be a file in a folder that is there.")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
