"""What `hyla-lm calibrate` measured of a chip, and a plan's range corrected by it.

The measured step is carried over: it is multiplied by how much longer the planned step computes
than the calibrated one. That growth is taken four ways, by estimated and by counted cycles, each of
the whole step and part by part, weighted with the measured times of the parts. Collectives are
those of the plan, times what was measured over predicted of the largest of their kind. The range
spans the four growths with collectives hidden and not, and is widened by the spread of the measured
steps.
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hyla_lm.errors import UserError

FORMAT = 1
FIELDS = ("device", "versions", "dtype", "attention", "measurements", "prediction", "no_prediction")
METHODS = ("estimated", "counted")
STEP, PART, COLLECTIVE = "step", "part", "collective"
GENERATIONS = {
    "TPU v5 lite": "v5e",
    "TPU v5e": "v5e",
    "TPU v5": "v5p",
    "TPU v5p": "v5p",
    "TPU v6 lite": "v6e",
    "TPU v6e": "v6e",
}
# The plan's parts that a measured part holds, by the beginning of its name.
PARTS = {
    "embedding": ("embedding",),
    "attention": ("attention kernel", "attention", "projections"),
    "feed-forward": ("feed-forward",),
    "logits and loss": ("loss and logits",),
    "optimizer": ("optimizer",),
}
ERROR = (
    "the range holds if this step differs from the measured one as the cycles say. It covers what "
    "the two methods and the parts disagree on, collectives hidden or not, and the spread of the "
    "measured steps. Host and input are left out."
)
UNMEASURED = "collectives of these kinds were not measured and stand as computed: "


@dataclass(frozen=True)
class Calibration:
    """The content of a calibration file that holds a prediction, and its path."""

    path: str
    content: Mapping[str, Any]

    def rows(self, group: str) -> list[Mapping[str, Any]]:
        """The measurements of a group."""
        return [row for row in self.content["measurements"] if row["group"] == group]

    @property
    def step(self) -> Mapping[str, Any]:
        (row,) = self.rows(STEP)
        return row

    @property
    def parts(self) -> dict[str, float]:
        """Measured seconds of the parts that have a prediction, by the keys of PARTS."""
        found: dict[str, float] = defaultdict(float)
        for row in self.rows(PART):
            if not row["name"].endswith(", forward"):
                found[part_of(row["name"])] += row["seconds"]
        return dict(found)

    @property
    def links(self) -> dict[str, float]:
        """Measured over predicted of each kind of collective, of the largest array."""
        found: dict[str, float] = {}
        for row in sorted(self.rows(COLLECTIVE), key=lambda row: row["work"]):
            found |= {row["name"].partition(",")[0]: ratio for ratio in row["ratio"].values()}
        return found


@dataclass(frozen=True)
class Predicted:
    """Seconds of a plan: of each of its parts by method, and of collectives by kind."""

    parts: Mapping[str, Mapping[str, float]]
    links: Mapping[str, float]

    def compute(self, method: str) -> float:
        return sum(self.parts[method].values())

    def part(self, method: str, name: str) -> float:
        """Seconds of a part that is measured, by the keys of PARTS."""
        return sum(self.parts[method].get(part, 0.0) for part in PARTS[name])

    def collectives(self, ratios: Mapping[str, float]) -> float:
        return sum(seconds * ratios.get(kind, 1.0) for kind, seconds in self.links.items())


def part_of(name: str) -> str:
    """The key of PARTS that a measured part belongs to."""
    return next(part for part in PARTS if name.startswith(part))


def predicted(plan: Mapping[str, Any]) -> Predicted:
    """The seconds of a plan's parts and collectives."""
    parts: dict[str, dict[str, float]] = {}
    for method in METHODS:
        cycles = {row["part"]: row[method] for row in plan["cycles"]}
        second = sum(cycles.values()) / plan["step_seconds"][f"{method}_compute"]
        parts[method] = {part: count / second for part, count in cycles.items()}
    links: dict[str, float] = defaultdict(float)
    for row in plan["collectives"]:
        links[row["kind"]] += row["seconds"]
    return Predicted(parts, links)


def read_calibration(path: str) -> Calibration:
    """The calibration of a file; raises UserError for a file that is none."""
    try:
        content = json.loads(Path(path).expanduser().read_text())
    except OSError as error:
        raise UserError(f"--calibration={path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise UserError(f"--calibration={path} is no JSON: give a file of calibrate.") from error
    if not isinstance(content, dict) or content.get("calibration") != FORMAT:
        raise UserError(
            f"--calibration={path} is no calibration of format {FORMAT}: write one with "
            "hyla-lm calibrate --output=FILE."
        )
    if missing := [name for name in FIELDS if name not in content]:
        raise UserError(
            f"--calibration={path} is incomplete, it lacks {missing[0]}: write it anew."
        )
    return Calibration(path, content)


def check_device(calibration: Calibration, topology: str) -> None:
    """Raises UserError if another kind of chip was measured than the plan is for."""
    kind = calibration.content["device"]["kind"]
    generation = topology.partition(":")[0]
    if GENERATIONS.get(kind) != generation:
        raise UserError(
            f"--calibration={calibration.path} is of {kind!r} and --topology={topology} has "
            f"another chip: calibrate on a {generation}."
        )


def check_versions(calibration: Calibration, versions: Mapping[str, str | None]) -> None:
    """Raises UserError if it was measured with another JAX or libtpu, or holds no prediction."""
    measured = calibration.content["versions"]
    for name in ("jax", "libtpu"):
        if measured.get(name) != versions.get(name):
            raise UserError(
                f"--calibration={calibration.path} was measured with {name} {measured.get(name)} "
                f"and this plan has {versions.get(name)}: calibrate again, or install that."
            )
    if not calibration.content["prediction"]:
        raise UserError(
            f"--calibration={calibration.path} holds no prediction to correct "
            f"({calibration.content['no_prediction']}): calibrate again."
        )


def check_program(calibration: Calibration, dtype: str, attention: Sequence[str]) -> None:
    """Raises UserError if the plan's dtype or one of its kernels was not measured."""
    measured = calibration.content["dtype"]
    if measured != dtype:
        raise UserError(
            f"--calibration={calibration.path} was measured in {measured} and ModelConfig.dtype = "
            f"{dtype!r}: calibrate with this config."
        )
    known = calibration.content["attention"]
    if new := sorted(set(attention) - set(known)):
        raise UserError(
            f"--calibration={calibration.path} measured {', '.join(known)} and this plan runs "
            f"{', '.join(new)}: calibrate with this config."
        )


def growths(planned: Predicted, calibrated: Predicted, parts: Mapping[str, float]) -> list[float]:
    """How much longer the plan computes than what was calibrated, in the four ways above."""
    found = []
    for method in METHODS:
        found.append(planned.compute(method) / calibrated.compute(method))
        known = {name: x for name, x in parts.items() if calibrated.part(method, name)}
        grown = sum(
            seconds * planned.part(method, name) / calibrated.part(method, name)
            for name, seconds in known.items()
        )
        found.append(grown / sum(known.values()))
    return found


def corrected_range(plan: Mapping[str, Any], calibration: Calibration) -> tuple[float, float]:
    """The shortest and longest step in seconds."""
    planned, calibrated = predicted(plan), predicted(calibration.content["prediction"])
    step, links = calibration.step, calibration.links
    before, now = calibrated.collectives(links), planned.collectives(links)
    latency = plan["step_seconds"]["latency"]
    ends = []
    for growth in growths(planned, calibrated, calibration.parts):
        hidden = max(step["seconds"] * growth, now)
        exposed = max(step["seconds"] - before, 0.0) * growth + now + latency
        ends += [hidden, exposed]
    shortest = max(min(ends) * (1 - step["spread"]), plan["step_seconds"]["bound"])
    return shortest, max(max(ends) * (1 + step["spread"]), shortest)


def described(plan: Mapping[str, Any], calibration: Calibration) -> dict[str, Any]:
    """What corrected a plan, for its report: by what, and from how many measurements."""
    rows = [row for row in calibration.content["measurements"] if row["group"] != "peak"]
    device, versions = calibration.content["device"], calibration.content["versions"]
    unmeasured = sorted(set(predicted(plan).links) - set(calibration.links))
    return {
        "file": calibration.path,
        "device": device,
        "versions": versions,
        "figures": len(rows),
        "timings": sum(row["repeats"] for row in rows),
        "uncorrected": plan["predicted"],
        "unmeasured": unmeasured,
    }


def sentence(found: Mapping[str, Any]) -> str:
    """What corrected a plan, in words."""
    device, versions = found["device"], found["versions"]
    short, long = (found["uncorrected"][end]["step_seconds"] for end in ("shortest", "longest"))
    text = (
        f"Corrected by {found['file']}: {found['figures']} figures from {found['timings']} timings "
        f"on {device['count']} x {device['kind']} (jax {versions['jax']}, libtpu "
        f"{versions['libtpu']}). Uncorrected, the step is {short * 1e3:.1f} ms to "
        f"{long * 1e3:.1f} ms."
    )
    if found["unmeasured"]:
        text += f" Note: {UNMEASURED}{', '.join(found['unmeasured'])}."
    return text
