"""The report of interventions: a table of R2 by what was changed and method."""

from collections.abc import Sequence
from pathlib import Path

from hyla_lm.evals.interventions.command import Changed
from hyla_lm.evals.tables import Mean, markdown, mean_of, shown
from hyla_lm.storage import write_whole

TOWARD = ("own_r2", "donor_r2")
HEADER = """# Interventions on latent codes

R2 times 100 on held-out functions of fuzzy logic, all queries together. Errors are standard errors
over seeds. Codes of all layers, heads and pairs of tokens are replaced by those of the sequence or
mean that is named, taken from an unchanged model. Values stay, unless it says so. "Own" is
R2 toward the function of the sequence, "donor" toward that whose codes it got. Donors have the same
points, but for "another sequence".
"""


def mean_over_seeds(
    results: Sequence[Changed], attention: str, change: str, toward: str
) -> Mean | None:
    """R2 times 100 of one cell; None where it was not measured."""
    cells = [run.found.get(change, {}) for run in results if run.attention == attention]
    return mean_of(100 * cell[toward] for cell in cells if toward in cell)


def write_report(folder: Path, results: Sequence[Changed]) -> None:
    """Writes report.md from the results."""
    attentions = sorted({run.attention for run in results})
    changes = list(dict.fromkeys(name for run in results for name in run.found))
    columns = [(attention, toward) for attention in attentions for toward in TOWARD]
    header = ["codes", *(f"{a}, {toward.removesuffix('_r2')}" for a, toward in columns)]
    rows = [
        [change, *(shown(mean_over_seeds(results, a, change, toward), 1) for a, toward in columns)]
        for change in changes
    ]
    steps = ", ".join(f"{n:,}" for n in sorted({run.step for run in results}))
    examples = ", ".join(f"{n:,}" for n in sorted({run.examples for run in results}))
    lines = [
        HEADER,
        f"- Checkpoints of step {steps}; {examples} examples.",
        f"- Runs: {', '.join(run.name for run in results)}.",
        "",
        *markdown(header, rows),
        "",
    ]
    write_whole(folder / "report.md", "\n".join(lines).encode())
