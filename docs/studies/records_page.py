"""Makes docs/records.md and docs/records.png of docs/results/records.

python -m docs.studies.records_page
"""

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

from docs.studies.records import (
    METHODS,
    RATES,
    RESULTS,
    SEEDS,
    STEPS,
    TUNING_STEPS,
    best_rate,
    read_all,
    tuning_of,
)
from docs.studies.records_corpus import COMMITTED, PACKAGES
from docs.studies.records_figure import draw
from docs.studies.records_numbers import (
    BASELINE,
    BUDGETS,
    Cell,
    Pair,
    budget,
    cells_of,
    ended,
    pairs,
    scalings,
    sizes_begun,
)
from hyla_lm import ending
from hyla_lm.evals.tables import markdown
from hyla_lm.storage import write_whole
from hyla_lm.tools.compare.intervals import Interval, p_text

PAGE = RESULTS.parents[1] / "records.md"
PICTURE = PAGE.with_suffix(".png")
SIGNIFICANT = 0.05
HEAD = """# Record book

Small language models of one text, that differ in their attention alone: softmax, linear, HYLA,
and a hybrid whose layers are softmax and HYLA in turn. `make records` makes the corpus, trains
what has no result yet, and writes this page from `docs/results/records`. To measure all anew,
delete that folder first.

**What is equal:** the tokens, their order for a seed, the schedule, and the number of
parameters. **What is not:** FLOPs and time. Further down the runs are read at equal FLOPs and
at equal time, too.

These models are small and see little text. Nothing here says what happens at a hundred times
the size.
"""
CORPUS = """## Corpus

Prose of the docstrings of {packages} packages of PyPI, as pip downloads them with the versions
and hashes of `docs/records/packages.txt`. Nothing of them is run or installed.
`python -m docs.studies.records_corpus --output=runs/records` makes it, with a tokenizer of 2,048
pieces and rows of 128 tokens. One document in a hundred is for validation, by a hash of its
text. The sorted hashes of all documents have SHA-256

    {digest}

and other text is refused. The documents were read with Python 3.11; a Python that parses other
files finds another text.
"""
COSTS = """± is the standard error over seeds. CPU seconds are those of a process: with compiling
and evaluations in a run, of the step alone in a step. They were measured on a shared machine
({machines}), so read them as ratios within a size: sizes were measured on different days, and
270k on the slowest. The step is the median of 15 rounds, the methods in turn.
Memory is the most that the process held. Revisions: {revisions}.
"""
BUDGET_TEXT = """## At equal FLOPs and equal time

The same runs, read at the largest budget that all methods of a size have spent; bits per byte
are linear between two evaluations. FLOPs are those of the formula of
[`perf/mfu`](curves.md#speed-and-cost), seconds those of the processor for the steps. A run that
is read before its end has a learning rate that has not fallen yet. So a costlier method looks a
little worse than a shorter run of it would.
"""
SCALING_TEXT = """## Over sizes

Bits per byte as a power of the parameters: {fits}. The fit is least squares on logarithms over
all sizes and seeds; ± is its standard error. All runs see the same tokens, so this is what a
larger model gains from this little text, and no law of scaling.
"""
TUNING_TEXT = """## Learning rates

One run of {steps} steps and another seed at each rate, the same rates for each method and size.
The best, in bold, trains the seeds. Where it is the first or the last rate, a better one may
lie beyond.
"""
DIFFERENCE_TEXT = f"""Differences from {BASELINE}, in bits per byte: below 0 is better. Intervals
are of 95 %. Over documents they are of these very runs, paired by document, as in
[`hyla-lm compare`](comparing.md#what-the-intervals-mean). Over seeds they are Welch's, so each
method's seeds may vary in their own way; they are of these documents, and wide with three seeds.
p is that over seeds, where there are some, adjusted for the pairs of a size (Holm).
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes page and picture and returns a status, as hyla_lm.ending counts them."""
    argparse.ArgumentParser("records_page", description=__doc__).parse_args(arguments)
    return ending.run("records_page", write)


def write() -> None:
    cells = [cell for size in sizes_begun(RESULTS) for cell in cells_of(RESULTS, size)]
    write_whole(PAGE, page(RESULTS).encode())
    if cells:
        write_whole(PICTURE, draw(cells))


def page(folder: Path) -> str:
    """The page of a folder of results."""
    sizes = sizes_begun(folder)
    cells = {size: found for size in sizes if (found := cells_of(folder, size))}
    packages = sum("==" in line for line in PACKAGES.read_text().splitlines())
    parts = [HEAD, state(folder, sizes)]
    if cells:
        parts += ["## Results\n", picture(), results_table(cells), costs_note(folder)]
        parts += [DIFFERENCE_TEXT, difference_table(cells), BUDGET_TEXT, budget_table(cells)]
        parts += scaling_text([cell for found in cells.values() for cell in found])
    parts += [TUNING_TEXT.format(steps=TUNING_STEPS), tuning_table(folder, sizes)]
    parts += [CORPUS.format(packages=packages, digest=COMMITTED.read_text().strip())]
    return "\n".join(parts)


def state(folder: Path, sizes: Sequence[str]) -> str:
    """How far the runs have come."""
    tuning, seeds = len(METHODS) * len(RATES), len(METHODS) * len(SEEDS)
    rows = []
    for size in sizes:
        tuned, trained = ended(folder, size)
        rows.append([size, f"{tuned} of {tuning}", f"{trained} of {seeds}"])
    return f"Runs that have ended:\n\n{table(['size', 'tuning runs', 'runs of seeds'], rows)}"


def picture() -> str:
    return (
        f"![Bits per byte over FLOPs and over seconds, a line for each method and size]"
        f"({PICTURE.name})\n\n*Means over seeds. Both axes of spending are logarithmic. Seconds "
        "compare the methods of a size alone.*\n"
    )


def results_table(cells: dict[str, list[Cell]]) -> str:
    """Quality and costs of each method and size."""
    head = ["size", "attention", "bits per byte", "seeds", "parameters", "GFLOPs a step"]
    head += ["CPU ms a step", "ratio", "CPU s a run", "memory GB"]
    rows = []
    for size, found in cells.items():
        base = {cell.method: cell for cell in found}.get(BASELINE)
        for cell in found:
            ratio = f"{cell.step_seconds / base.step_seconds:.2f}" if base else "–"
            row = [size, cell.method, estimate(cell), f"{len(cell.runs)} of {len(SEEDS)}"]
            row += [f"{cell.runs[0]['parameters']:,}", f"{cell.flops / 1e9:.2f}"]
            row += [f"{cell.step_seconds * 1000:.1f}", ratio]
            rows.append([*row, f"{cell.mean('cpu_seconds'):.0f}", f"{cell.mean('memory_gb'):.2f}"])
    tokens = next(iter(cells.values()))[0].tokens * STEPS
    return f"{STEPS:,} steps and {tokens / 1e6:.2f}M tokens a run.\n\n{table(head, rows)}"


def costs_note(folder: Path) -> str:
    """What the figures of the table are, and what they were measured on."""
    runs = read_all(folder)
    machines = ", ".join(sorted({run["machine"] for run in runs}))
    made = sorted({run["environment"]["git_revision"][:10] for run in runs if "environment" in run})
    return COSTS.format(machines=machines, revisions=", ".join(f"`{one}`" for one in made))


def difference_table(cells: dict[str, list[Cell]]) -> str:
    head = ["size", "attention", "difference", "over documents", "over seeds", "p", "verdict"]
    return table(
        head,
        ([size, *difference_row(p)] for size, found in cells.items() for p in pairs(found)),
    )


def difference_row(pair: Pair) -> list[str]:
    verdict = "no difference found"
    if pair.p < SIGNIFICANT:
        verdict = "better" if pair.value < 0 else "worse"
    intervals = [interval(pair.over_documents), interval(pair.over_seeds)]
    return [pair.method, f"{pair.value:+.4f}", *intervals, p_text(pair.p), verdict]


def interval(found: Interval | None) -> str:
    return f"{found.low:+.4f} to {found.high:+.4f}" if found else "one seed"


def budget_table(cells: dict[str, list[Cell]]) -> str:
    rows = []
    for size, found in cells.items():
        budgets = {at: budget(found, at) for at in BUDGETS}
        for cell in found:
            read = [f"{cell.bits_at(at, spent):.4f}" for at, spent in budgets.items()]
            rows.append([size, cell.method, *read])
        flops, seconds = f"{budgets['flops'] / 1e12:.2f} TFLOPs", f"{budgets['seconds']:.0f} s"
        rows.append([size, "*spent*", f"{budgets['tokens'] / 1e6:.2f}M", flops, seconds])
    return table(["size", "attention", "equal tokens", "equal FLOPs", "equal time"], rows)


def scaling_text(cells: Sequence[Cell]) -> list[str]:
    """The fits over sizes; nothing while no method has enough of them."""
    fits = [f"{s.method} {-s.exponent:.3f} ± {s.error:.3f}" for s in scalings(cells)]
    return [SCALING_TEXT.format(fits=", ".join(fits))] if fits else []


def tuning_table(folder: Path, sizes: Sequence[str]) -> str:
    """Bits per byte of each rate; a method whose rates are not all tried has none in bold."""
    results, rows = read_all(folder), []
    for size in sizes:
        for method in METHODS:
            tuning = tuning_of(results, size, method)
            told = {run["learning_rate"]: bits_text(run["bits_per_byte"]) for run in tuning}
            if len(told) == len(RATES):
                best = best_rate(results, size, method)
                told[best] = f"**{told[best]}**"
            rows.append([size, method, *(told.get(rate, "to come") for rate in RATES)])
    return table(["size", "attention", *(f"{rate:g}" for rate in RATES)], rows)


def bits_text(bits: float | None) -> str:
    return "not finite" if bits is None else f"{bits:.4f}"


def estimate(cell: Cell) -> str:
    return f"{cell.bits:.4f}" + ("" if cell.error is None else f" ± {cell.error:.4f}")


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(markdown(header, rows)) + "\n"


if __name__ == "__main__":
    ending.process(main)
