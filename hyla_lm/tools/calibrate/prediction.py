"""The plan of the same config for the chips that are here, made by a process beside the measuring.

It is `hyla-lm plan` as anybody runs it: it compiles for the TPU without using it. What keeps it
from ending well is told, and then nothing is predicted.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import IO, Any

import jax

from hyla_lm.errors import UserError
from hyla_lm.tools.calibrate.timing import Measurement
from hyla_lm.tools.plan.calibration import GENERATIONS, PART, PARTS, STEP, part_of, predicted
from hyla_lm.tools.plan.topology import Slice

SECONDS = 240.0
KEPT = ("topology", "versions", "cycles", "step_seconds", "predicted")


@dataclass(frozen=True)
class Prediction:
    """The part of a plan that predicts times, or why there is none."""

    plan: dict[str, Any] | None
    reason: str = ""


def topology_of(devices: Sequence[Any]) -> str:
    """The slice that these devices are; empty if they are none that can be planned."""
    generation = GENERATIONS.get(devices[0].device_kind)
    if generation is None or not hasattr(devices[0], "coords"):
        return ""
    extents = [max(axis) - min(axis) + 1 for axis in zip(*(x.coords for x in devices), strict=True)]
    sizes = extents if generation == "v5p" else sorted(extents[:2])
    try:
        return Slice(f"{generation}:{'x'.join(map(str, sizes))}").name
    except UserError:
        return ""


class Planning:
    """A plan in the making; `result` waits for it."""

    def __init__(self, process: "subprocess.Popen[bytes] | None", output: IO[bytes], why: str):
        self._process, self._output, self._why = process, output, why

    def result(self) -> Prediction:
        if self._process is None:
            return Prediction(None, self._why)
        try:
            status = self._process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            return Prediction(None, f"hyla-lm plan took more than {SECONDS:.0f} s")
        self._output.seek(0)
        text = self._output.read().decode(errors="replace")
        if status:
            last = (text.strip().splitlines() or [f"status {status}"])[-1]
            return Prediction(None, f"hyla-lm plan ended with status {status}: {last[:300]}")
        plan = json.loads(text[text.index("{") :])
        return Prediction(kept(plan))


@contextmanager
def planning(
    devices: Sequence[jax.Device], gin_files: Sequence[str], bindings: Sequence[str]
) -> Iterator[Planning]:
    """A plan for these devices, if there is one; its process ends with the block."""
    topology = topology_of(devices)
    with tempfile.TemporaryFile() as output:
        if not topology:
            kind = devices[0].device_kind
            yield Planning(None, output, f"hyla-lm plan knows no slice of {len(devices)} x {kind}")
            return
        command = [sys.executable, "-m", "hyla_lm", "plan", f"--topology={topology}", "--json"]
        command += ["--compiles=0", *(f"--gin_file={path}" for path in gin_files)]
        command += [f"--gin.{binding}" for binding in bindings]
        environment = os.environ | {"JAX_PLATFORMS": "cpu"}
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
        try:
            yield Planning(process, output, "")
        finally:
            process.kill()
            process.wait()


def kept(plan: dict[str, Any]) -> dict[str, Any]:
    """What a calibration keeps of a plan: the figures that it is compared with."""
    links = [{"kind": x["kind"], "seconds": x["seconds"]} for x in plan["collectives"]]
    return {**{name: plan[name] for name in KEPT}, "collectives": links}


def compared(found: Sequence[Measurement], plan: dict[str, Any] | None) -> list[Measurement]:
    """The measurements, those of parts and steps beside what the plan predicts of them."""
    if plan is None:
        return list(found)
    parts = predicted(plan)
    ends = {end: plan["predicted"][end]["step_seconds"] for end in ("shortest", "longest")}

    def beside(x: Measurement) -> Measurement:
        if x.group == STEP:
            return replace(x, predicted=ends)
        # A variant's share of all attention is not known where a model has several.
        several = sum(part_of(y.name) == part_of(x.name) for y in found if is_whole(y)) > 1
        if not is_whole(x) or several:
            return x
        return replace(
            x, predicted={m: parts.part(m, part_of(x.name)) for m in ("estimated", "counted")}
        )

    return [beside(x) for x in found]


def is_whole(x: Measurement) -> bool:
    """Whether a measurement is of a part as a plan has it, forward and backward."""
    return x.group == PART and not x.name.endswith(", forward") and part_of(x.name) in PARTS
