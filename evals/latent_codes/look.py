"""Looks inside the latent code of a trained run: hyla-lm evals look --workdir=RUN.

For fuzzy logic and SRAVEN it decodes terms and rules from codes of held-out tasks and draws
pictures of the codes; for language models it saves codes of validation tokens.
"""

import argparse
import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hyla_lm.errors import UserError
from hyla_lm.evals.latent_codes.samples import Choices
from hyla_lm.storage import write_whole

HELP = "look inside the latent code of one run; bindings change its config.gin"
NEEDED = ("sklearn", "matplotlib")


def run(options: argparse.Namespace, bindings: list[str]) -> None:
    """Writes report.json, codes.npz and pictures to --out, and prints a table."""
    check_extra()
    from hyla_lm.evals.latent_codes.report import lines

    out = Path(options.out or Path(options.workdir) / "latent_code")
    report = look_at(
        options.workdir, options.step, chosen(options), options.tsne_examples, out, bindings
    )
    for line in lines(report):
        print(line)
    print(f"report, codes and figures: {out}")


def check_extra() -> None:
    """Raises UserError without the packages of the extra `evals`."""
    for name in NEEDED:
        if find_spec(name) is None:
            raise UserError(
                f"the analysis of latent codes needs {name}: pip install 'hyla_lm[evals]'."
            )


def look_at(
    workdir: str,
    step: int | None,
    choices: Choices,
    tsne_examples: int,
    out: Path,
    bindings: Sequence[str] = (),
) -> dict[str, Any]:
    """Collects codes of a run and writes the report to `out`; returns its report.json."""
    from hyla_lm.evals.latent_codes import language as language_codes
    from hyla_lm.evals.latent_codes import report as latent_report
    from hyla_lm.parallel.mesh import all_devices
    from hyla_lm.run.restored import open_run
    from hyla_lm.tasks.language_model import LanguageModelTask

    run = open_run(workdir, step, (), bindings, all_devices()[:1])
    is_language = isinstance(run.program.task, LanguageModelTask)
    look = language_codes.report if is_language else latent_report.report
    out.mkdir(parents=True, exist_ok=True)
    report = {"workdir": workdir, "step": run.step, **look(run, choices, tsne_examples, out)}
    text = json.dumps(report, indent=1, allow_nan=False) + "\n"
    write_whole(out / "report.json", text.encode())
    return report


def chosen(options: argparse.Namespace) -> Choices:
    """The Choices that the options of `add_choices` give."""
    return Choices(
        options.examples, options.seed, options.fixed, options.site, options.feature_order
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workdir", required=True, help="folder of a run with checkpoints")
    parser.add_argument("--step", type=int, help="checkpoint to take (default: the newest)")
    parser.add_argument(
        "--out", help="folder for the results (default: latent_code in the workdir)"
    )
    add_choices(parser)


def add_choices(parser: argparse.ArgumentParser) -> None:
    """Adds the options of which codes to look at."""
    add = parser.add_argument
    add("--examples", type=count, default=4096, help="examples a set, or tokens of a text")
    add("--tsne_examples", type=count, default=1000, help="points of the tSNE pictures")
    add("--seed", type=int, default=0, help="seed of the examples and of tSNE")
    add(
        "--fixed",
        choices=("nothing", "context", "query"),
        default="nothing",
        help="fuzzy logic: inputs that are the same in all examples",
    )
    add(
        "--site",
        choices=("self", "row"),
        default="self",
        help="SRAVEN: what the last query attends to, itself or the shown panels of its row",
    )
    add(
        "--feature_order",
        choices=("drawn", "identity"),
        default="drawn",
        help="SRAVEN: order of features in columns, drawn as in training or none",
    )


def count(text: str) -> int:
    """A whole number above 0, as an argument's type."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} must be a number above 0")
    return int(text)
