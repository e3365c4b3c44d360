"""Makes docs/records.md, docs/records.png and the report of docs/results/records.

python -m docs.studies.records_page
"""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

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
    less,
    pairs,
    scalings,
    sizes_begun,
)
from hyla_lm import ending
from hyla_lm.evals.tables import markdown
from hyla_lm.storage import write_whole
from hyla_lm.tools.compare.intervals import Interval, p_text, welch

PAGE = RESULTS.parents[1] / "records.md"
PICTURE = PAGE.with_suffix(".png")
REPORT = RESULTS / "report.md"
SIGNIFICANT = 0.05
HEAD = """# Record book

Which attention has the fewest bits per byte in small language models that differ in nothing else?
A hybrid has softmax and HYLA layers in turn.

{verdict}

![Bits per byte of four kinds of attention, and HYLA less linear attention]({picture})

*Each point is a run, or a pair of runs with the same seed. Below 0 HYLA is better than linear
attention.*

These models are small and see little text. Nothing here says what happens at a hundred times
the size.

## Results

{results}
Differences are from softmax: below 0 is better. ± is the standard error over seeds; intervals are
Welch's over seeds, of 95 %. [FLOPs](curves.md#speed-and-cost) and CPU time are per step, relative
to softmax.

## HYLA against linear attention

{against_linear}
For equal FLOPs or CPU time we take an earlier checkpoint of the slower model, at a higher learning
rate. This disfavours HYLA a little.

## What is equal, and what is not

Equal are the tokens ({tokens}M per run, {steps:,} steps), their order for a seed, the schedule
and the number of parameters. FLOPs and time differ. The learning rate is the best of four for each
method and size, chosen in shorter runs with another seed.

The text is prose of the docstrings of {packages} packages. Rows have 128 tokens. The vocabulary has
2,048 pieces.

[All tables](results/records/report.md) and [further experiments](results/experiments/report.md)
have the rest.

## Repeat it

`make records` builds the corpus, trains the missing runs and writes this page. Committed results
are in `docs/results/records`; delete them to measure all anew.
"""
REPORT_HEAD = """# Record book, all tables

[The record book](../../records.md) has the verdict. `make records` makes both pages.
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
and evaluations in a run, of the step only in a step. They were measured on a shared machine
({machines}), so read them as ratios within a size: sizes were measured on different days, and
270k on the slowest. The step is the median of 15 rounds, the methods in turn.
Memory is the most that the process held. Revisions: {revisions}.
"""
BUDGET_TEXT = """## At equal FLOPs and equal time

The same runs, read at the largest budget that all methods of a size have spent; bits per byte
are linear between two evaluations. FLOPs are those of the formula of
[`perf/mfu`](../../curves.md#speed-and-cost), seconds those of the processor for the steps. A run
that is read before its end has a learning rate that has not fallen yet. So a costlier method looks
a little worse than a shorter run of it would.
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
[`hyla-lm compare`](../../comparing.md#what-the-intervals-mean). Over seeds they are Welch's, so
each method's seeds may vary in their own way; they are of these documents, and wide with three
seeds. p is that over seeds, where there are some, adjusted for the pairs of a size (Holm).
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes page and picture and returns a status, as hyla_lm.ending counts them."""
    argparse.ArgumentParser("records_page", description=__doc__).parse_args(arguments)
    return ending.run("records_page", write)


def write() -> None:
    cells = {size: found for size in sizes_begun(RESULTS) if (found := cells_of(RESULTS, size))}
    write_whole(PAGE, page(RESULTS).encode())
    write_whole(REPORT, report(RESULTS).encode())
    if cells:
        write_whole(PICTURE, draw(cells))


def page(folder: Path) -> str:
    """The page of a folder of results: the verdict, and the tables that it rests on."""
    cells = {size: found for size in sizes_begun(folder) if (found := cells_of(folder, size))}
    return HEAD.format(
        verdict=verdict(cells),
        picture=PICTURE.name,
        results=short_table(cells),
        against_linear=against_linear(cells),
        tokens=f"{next(iter(cells.values()))[0].tokens * STEPS / 1e6:.2f}",
        steps=STEPS,
        packages=number_of_packages(),
    )


def report(folder: Path) -> str:
    """All tables of a folder of results."""
    sizes = sizes_begun(folder)
    cells = {size: found for size in sizes if (found := cells_of(folder, size))}
    parts = [REPORT_HEAD, state(folder, sizes)]
    if cells:
        parts += ["## Results\n", results_table(cells), costs_note(folder)]
        parts += [DIFFERENCE_TEXT, difference_table(cells), BUDGET_TEXT, budget_table(cells)]
        parts += scaling_text([cell for found in cells.values() for cell in found])
    parts += [TUNING_TEXT.format(steps=TUNING_STEPS), tuning_table(folder, sizes)]
    committed = COMMITTED.read_text().strip()
    parts += [CORPUS.format(packages=number_of_packages(), digest=committed)]
    return "\n".join(parts)


def number_of_packages() -> int:
    return sum("==" in line for line in PACKAGES.read_text().splitlines())


def verdict(cells: Mapping[str, Sequence[Cell]]) -> str:
    """What the runs say, in words."""
    names, of = list(cells), list(cells.values())
    best = {min(found, key=lambda cell: cell.bits).method for found in of}
    bits = [{cell.method: cell.bits for cell in found} for found in of]
    behind = [each["hyla"] - each[BASELINE] for each in bits]
    leads = [[-x for x in less(found, "hyla", "linear")] for found in of]
    every = [lead for of_size in leads for lead in of_size]
    gaps = [f"{np.mean(of_size):.3f}" for of_size in leads]
    intervals = {name: hyla_less_linear(found) for name, found in cells.items()}
    unsure = [name for name, found in intervals.items() if found and found.low <= 0 <= found.high]
    doubt = f" At {' and '.join(unsure)} the interval includes 0." if unsure else ""
    return f"""**{" or ".join(best).capitalize()} leads at each size.** HYLA is behind by
{min(behind):.2f} to {max(behind):.2f} bits per byte.

**HYLA beats linear attention in {sum(x > 0 for x in every)} of {len(every)} pairs of seeds** at
equal tokens. Its lead is {", ".join(gaps[:-1])} and {gaps[-1]} bits per byte at
{", ".join(names[:-1])} and {names[-1]} parameters.{doubt} From the smallest size to the
largest the lead grows by {np.mean(leads[-1]) - np.mean(leads[0]):.3f}
({interval(welch(leads[-1], leads[0]), 3)}).

**At equal CPU time it does not.** A step of HYLA takes longer."""


def short_table(cells: Mapping[str, Sequence[Cell]]) -> str:
    """Bits per byte, their difference from softmax, FLOPs and time of each method and size."""
    head = ["size", "attention", "bits per byte", "difference", "interval", "FLOPs", "CPU time"]
    rows = []
    for size, found in cells.items():
        base = {cell.method: cell for cell in found}[BASELINE]
        differences = {pair.method: pair for pair in pairs(found)}
        for cell in found:
            pair = differences.get(cell.method)
            both = [f"{pair.value:+.3f}", interval(pair.over_seeds, 3)] if pair else ["", ""]
            ratios = [f"{cell.flops / base.flops:.2f}"]
            ratios.append(f"{cell.step_seconds / base.step_seconds:.2f}")
            rows.append([size, cell.method, estimate(cell, 3), *both, *ratios])
    return table(head, rows)


def against_linear(cells: Mapping[str, Sequence[Cell]]) -> str:
    """HYLA less linear attention at equal tokens, FLOPs and time; intervals over seeds."""
    head = ["size", "equal tokens", "interval", "equal FLOPs", "equal CPU time"]
    rows = []
    for size, found in cells.items():
        of = {cell.method: cell for cell in found}
        hyla, linear = of["hyla"], of["linear"]
        budgets = {at: budget([hyla, linear], at) for at in BUDGETS}
        read = [f"{hyla.bits_at(a, b) - linear.bits_at(a, b):+.3f}" for a, b in budgets.items()]
        rows.append([size, read[0], interval(hyla_less_linear(found), 3), *read[1:]])
    return table(head, rows)


def hyla_less_linear(cells: Sequence[Cell]) -> Interval | None:
    """The interval over seeds of HYLA less linear attention at one size, at equal tokens."""
    of = {cell.method: [run["bits_per_byte"] for run in cell.runs] for cell in cells}
    return welch(of["hyla"], of["linear"])


def state(folder: Path, sizes: Sequence[str]) -> str:
    """How far the runs have come."""
    tuning, seeds = len(METHODS) * len(RATES), len(METHODS) * len(SEEDS)
    rows = []
    for size in sizes:
        tuned, trained = ended(folder, size)
        rows.append([size, f"{tuned} of {tuning}", f"{trained} of {seeds}"])
    return f"Runs that have ended:\n\n{table(['size', 'tuning runs', 'runs of seeds'], rows)}"


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
    runs = [run for run in read_all(folder) if run["method"] in METHODS]
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


def interval(found: Interval | None, digits: int = 4) -> str:
    return f"{found.low:+.{digits}f} to {found.high:+.{digits}f}" if found else "one seed"


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
            shown = {run["learning_rate"]: bits_text(run["bits_per_byte"]) for run in tuning}
            if len(shown) == len(RATES):
                best = best_rate(results, size, method)
                shown[best] = f"**{shown[best]}**"
            rows.append([size, method, *(shown.get(rate, "to come") for rate in RATES)])
    return table(["size", "attention", *(f"{rate:g}" for rate in RATES)], rows)


def bits_text(bits: float | None) -> str:
    return "not finite" if bits is None else f"{bits:.4f}"


def estimate(cell: Cell, digits: int = 4) -> str:
    error = "" if cell.error is None else f" ± {cell.error:.{digits}f}"
    return f"{cell.bits:.{digits}f}{error}"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(markdown(header, rows)) + "\n"


if __name__ == "__main__":
    ending.process(main)
