"""Slopes of what was measured, which of them must be flat, and the report of a check."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hyla_lm.attention.spec import VARIANTS
from hyla_lm.tools.coordcheck.measure import Measured

SIZE, CHANGE = "size", "change"
# Before training these fall as 1/sqrt(width) in muP: docs/width.md says why.
LOGITS = "logits"
FROM_SCORES = ("code", "attention", "value units")


@dataclass(frozen=True)
class Slope:
    """The slope of log2 of a quantity against log2 of the width, after `step` updates.

    The quantity is a mean absolute value, or its change since step 0. `judged` says whether muP
    must keep it flat.
    """

    variant: str
    parametrisation: str
    quantity: str
    part: str
    step: int
    slope: float
    judged: bool
    values: tuple[float, ...]


def slopes(
    variant: str, parametrisation: str, grow: str, measured: Mapping[int, Measured]
) -> list[Slope]:
    """The slopes of each quantity: of its size at every step, and of its change from step 1 on."""
    first = next(iter(measured.values()))
    last = len(first.loss)
    found = []
    for part, by_name in ((SIZE, first.size), (CHANGE, first.change)):
        for name in by_name:
            for step in range(part == CHANGE, last + 1):
                values = [float(getattr(m, part)[name][step]) for m in measured.values()]
                judged = _is_judged(variant, grow, name, part) and step in (0, last)
                judged = judged and (part == CHANGE or step == 0)
                fitted = slope_of(list(measured), values)
                found.append(
                    Slope(variant, parametrisation, name, part, step, fitted, judged, (*values,))
                )
    return found


def slope_of(widths: Sequence[int], values: Sequence[float]) -> float:
    """The least-squares slope of log2(value) against log2(width); nan if a value is 0."""
    if min(values) <= 0:
        return float("nan")
    return float(np.polyfit(np.log2(widths), np.log2(values), 1)[0])


def _is_judged(variant: str, grow: str, name: str, part: str) -> bool:
    if part == CHANGE:
        return True
    shrinks = grow == "head_dim" and VARIANTS[variant].normalization == "identity"
    return name != LOGITS and not (shrinks and name.startswith(FROM_SCORES))


def exceeding(found: Sequence[Slope], parametrisation: str, bound: float) -> list[Slope]:
    """The judged slopes that are not within the bound."""
    of = [s for s in found if s.parametrisation == parametrisation and s.judged]
    return [s for s in of if not abs(s.slope) <= bound]


def table(found: Sequence[Slope], widths: Sequence[int], bound: float) -> list[str]:
    """A line for each quantity of each variant: its slopes at the start and at the end."""
    kinds = list(dict.fromkeys(s.parametrisation for s in found))
    last = max(s.step for s in found)
    by_place = {(s.variant, s.quantity, s.part, s.step, s.parametrisation): s for s in found}
    lines = []
    for variant in dict.fromkeys(s.variant for s in found):
        names = dict.fromkeys(s.quantity for s in found if s.variant == variant)
        lines += ["", f"{variant}: slope over widths {', '.join(map(str, widths))}"]
        heads = [f"{kind} {part}" for kind in kinds for part in ("at start", f"change {last}")]
        lines.append("  ".join([f"{'':16}", *(f"{head:>18}" for head in heads)]).rstrip())
        for name in names:
            places = [
                by_place.get((variant, name, part, step, kind))
                for kind in kinds
                for part, step in ((SIZE, 0), (CHANGE, last))
            ]
            cells = [f"{_cell(place, bound):>18}" for place in places]
            lines.append("  ".join([f"{name:16}", *cells]).rstrip())
    return lines


def _cell(slope: Slope | None, bound: float) -> str:
    if slope is None:
        return "-"
    if not slope.judged:
        return f"({slope.slope:+.2f})    "
    verdict = "flat" if abs(slope.slope) <= bound else "not"
    return f"{slope.slope:+.2f} {verdict:<4}"


def as_json(found: Sequence[Slope], settings: Mapping[str, Any], losses: Any) -> dict[str, Any]:
    """The whole report for a file: a record for each curve over the steps, rounded."""
    curves: dict[tuple[str, str, str, str], list[Slope]] = {}
    for s in found:
        curves.setdefault((s.variant, s.parametrisation, s.quantity, s.part), []).append(s)
    records = [
        {
            **dict(zip(("variant", "parametrisation", "quantity", "part"), key, strict=True)),
            "judged_steps": [s.step for s in of if s.judged],
            "steps": [s.step for s in of],
            "slopes": [_rounded(s.slope) for s in of],
            "values": [[_rounded(value) for value in s.values] for s in of],
        }
        for key, of in curves.items()
    ]
    return {**settings, "losses": losses, "curves": records}


def _rounded(value: float) -> float | None:
    return float(f"{value:.4g}") if np.isfinite(value) else None
