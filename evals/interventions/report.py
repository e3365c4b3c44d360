"""The report of interventions: tables of R2 by kind and method, and a picture."""

from collections.abc import Sequence
from pathlib import Path

from hyla_lm.evals.interventions.command import Changed
from hyla_lm.evals.pictures import Figure, panels, save
from hyla_lm.evals.tables import Mean, markdown, mean_of, shown
from hyla_lm.storage import write_whole

ORDER = ("softmax", "linear", "hyla")
COLOURS = {"own_r2": "tab:blue", "donor_r2": "tab:orange"}
HEADER = """# Interventions on latent codes

R2 times 100 on held-out functions of fuzzy logic, all queries together. Errors are standard errors
over seeds. Codes of all layers, heads and pairs of tokens are replaced by those of the sequence or
mean that is named, taken from a model that was left alone. Values stay, unless it says so. "Own" is
R2 toward the function of the sequence, "donor" toward that whose codes it got. Donors have the same
points, but for "another sequence".
"""


def methods(results: Sequence[Changed]) -> list[str]:
    """The kinds of attention, the main ones first."""
    names = {run.attention for run in results}
    return [*(x for x in ORDER if x in names), *sorted(names - set(ORDER))]


def mean_over_seeds(
    results: Sequence[Changed], attention: str, change: str, toward: str
) -> Mean | None:
    """R2 times 100 of one cell; None where it was not measured."""
    cells = [run.found.get(change, {}) for run in results if run.attention == attention]
    return mean_of(100 * cell[toward] for cell in cells if toward in cell)


def write_report(folder: Path, results: Sequence[Changed]) -> None:
    """Writes report.md and interventions.png from the results alone."""
    changes = list(dict.fromkeys(name for run in results for name in run.found))
    columns = [(attention, toward) for attention in methods(results) for toward in COLOURS]
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
        "![R2 after interventions](interventions.png)",
        "",
        *markdown(header, rows),
        "",
    ]
    save(folder / "interventions.png", _picture(results, changes))
    write_whole(folder / "report.md", "\n".join(lines).encode())


def _picture(results: Sequence[Changed], changes: Sequence[str]) -> Figure:
    """Bars of R2 toward the own and the donor's function, one panel a method."""
    names = methods(results)
    figure, grid = panels(1, len(names), 3 + 2.6 * len(names), 4.6, sharey=True)
    for axes, attention in zip(grid[0], names, strict=True):
        for place, change in enumerate(changes):
            for shift, (toward, colour) in zip((-0.2, 0.2), COLOURS.items(), strict=True):
                mean = mean_over_seeds(results, attention, change, toward)
                if mean:
                    height = max(mean.value, -100)
                    axes.barh(place + shift, height, 0.38, xerr=mean.error, color=colour)
        axes.set(title=attention, xlim=(-105, 105), xlabel="R2 x 100, cut at -100")
        axes.axvline(0, color="black", linewidth=0.6)
        axes.set_yticks(range(len(changes)), changes)
    grid[0][0].invert_yaxis()
    figure.suptitle("Blue: toward its own function; orange: toward the donor's", fontsize=10)
    return figure
