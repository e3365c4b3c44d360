"""hyla-lm coordcheck: trains small models of several widths, prints slopes, writes a report."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hyla_lm.cli.parser import add_gin_files
from hyla_lm.errors import UserError, naming_settings

if TYPE_CHECKING:
    from hyla_lm.tools.coordcheck import Curve

HELP = "how activations and their changes grow with width, standard and in muP"
NOT_FLAT = 1
BOUND = 0.1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_gin_files(parser)
    parser.add_argument("--widths", default="64,128,256,512", help="values of model_dim")
    parser.add_argument("--variants", default="softmax,linear,hyla", help="kinds of attention")
    parser.add_argument("--steps", type=int, default=10, help="updates")
    parser.add_argument("--seeds", type=int, default=3, help="models of each width")
    parser.add_argument(
        "--grow",
        default="heads",
        choices=("heads", "head_dim"),
        help="what grows with width: the number of heads or their size",
    )
    parser.add_argument(
        "--only", choices=("standard", "mup"), help="measure one parametrisation, not both"
    )
    parser.add_argument(
        "--random_tokens", action="store_true", help="one batch of random tokens instead of data"
    )
    parser.add_argument(
        "--bound", type=float, help="status 1 if a judged slope is farther from 0 (table: 0.1)"
    )
    parser.add_argument("--output", help="folder for coordcheck.json and coordcheck.png")


def run(options: argparse.Namespace, bindings: list[str]) -> int:
    """Prints the slopes; status 1 if --bound is given and a judged slope exceeds it."""
    from hyla_lm.config.read_experiment import read_experiment
    from hyla_lm.tools import coordcheck
    from hyla_lm.tools.output import new_figure

    widths, variants = _widths(options.widths), _variants(options.variants)
    _check(options)
    if options.output:
        new_figure(1, 1)  # without matplotlib, the error comes before the work
    experiment = read_experiment(options.gin_file, bindings)
    base = replace(experiment.model, dtype="float32", scan_layers=False)
    kinds = [options.only] if options.only else [coordcheck.STANDARD, coordcheck.MUP]
    with naming_settings(widths=f"--widths={options.widths}"):
        families = {
            (variant, kind): coordcheck.family(
                replace(base, attention=variant), widths, options.grow, kind
            )
            for variant in variants
            for kind in kinds
        }
    training = coordcheck.training(experiment, options.steps, options.seeds, options.random_tokens)
    curves, losses = [], {}
    for (variant, kind), models in families.items():
        measured = {}
        for model in models:
            print(f"{variant}, {kind}, width {model.model_dim}", file=sys.stderr, flush=True)
            measured[model.model_dim] = coordcheck.measure(model, training)
        curves += coordcheck.curves_of(variant, kind, options.grow, measured)
        losses[f"{variant} {kind}"] = {w: m.loss_S.tolist() for w, m in measured.items()}
    bound = BOUND if options.bound is None else options.bound
    over = coordcheck.exceeding(curves, kinds[-1], bound)
    print("\n".join([*_tables(curves, bound), _verdict(kinds[-1], over, bound)]))
    if options.output:
        names = ("steps", "seeds", "grow")
        settings = {"widths": widths, **{name: getattr(options, name) for name in names}}
        _write(options.output, {**settings, "gin": experiment.text, "losses": losses}, curves)
    return NOT_FLAT if over and options.bound is not None else 0


def _widths(text: str) -> tuple[int, ...]:
    widths = [int(part) if part.strip().isdecimal() else 0 for part in text.split(",")]
    if len(widths) < 2 or any(low >= high for low, high in pairwise([0, *widths])):
        raise UserError(f"--widths={text} must be two or more rising whole numbers.")
    return tuple(widths)


def _variants(text: str) -> tuple[str, ...]:
    from hyla_lm.attention.attend import VARIANTS
    from hyla_lm.config.declare import wrong_choice

    for name in text.split(","):
        if name not in VARIANTS:
            raise wrong_choice(f"--variants={text}", name, VARIANTS)
    return tuple(text.split(","))


def _check(options: argparse.Namespace) -> None:
    for name in ("steps", "seeds"):
        if getattr(options, name) < 1:
            raise UserError(f"--{name}={getattr(options, name)} must be at least 1.")
    if options.bound is not None and not options.bound > 0:
        raise UserError(f"--bound={options.bound} must be above 0.")


def _tables(curves: "Sequence[Curve]", bound: float) -> list[str]:
    """A table for each variant: the slopes of each quantity at the start and at the end."""
    from hyla_lm.tools.output import plain

    lines = []
    for variant in dict.fromkeys(c.variant for c in curves):
        own = [c for c in curves if c.variant == variant]
        columns = list(dict.fromkeys((c.parametrisation, _when(c)) for c in own))
        cells = {(c.quantity, c.parametrisation, _when(c)): _cell(c, bound) for c in own}
        rows = [
            [name, *(cells[name, *column] for column in columns)]
            for name in dict.fromkeys(c.quantity for c in own)
        ]
        head = ["", *(" ".join(column) for column in columns)]
        widths = ", ".join(map(str, own[0].widths))
        lines += [f"{variant}: slope over widths {widths}", *plain([head, *rows]), ""]
    return lines


def _when(curve: "Curve") -> str:
    return "at start" if curve.part == "size" else f"change {curve.steps[-1]}"


def _cell(curve: "Curve", bound: float) -> str:
    if not curve.is_judged:
        return f"({curve.slope:+.2f})    "
    return f"{curve.slope:+.2f} {'flat' if abs(curve.slope) <= bound else 'not ':4}"


def _verdict(kind: str, over: "Sequence[Curve]", bound: float) -> str:
    if not over:
        return f"{kind}: every judged slope is within {bound} of flat."
    worst = max(over, key=lambda c: abs(c.slope))
    return (
        f"{kind}: {len(over)} judged slopes are not within {bound} of flat; the steepest is "
        f"{worst.slope:+.2f} ({worst.variant}, {worst.quantity}, {worst.part} at step "
        f"{worst.steps[worst.at]})."
    )


def _write(output: str, report: dict[str, Any], curves: "Sequence[Curve]") -> None:
    from hyla_lm.tools.coordcheck import draw

    folder = Path(output)
    content = {**report, "curves": [curve.as_json() for curve in curves]}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "coordcheck.json").write_text(json.dumps(content) + "\n")
    (folder / "coordcheck.png").write_bytes(draw(curves))
    print(f"wrote {folder}/coordcheck.json and {folder}/coordcheck.png")
