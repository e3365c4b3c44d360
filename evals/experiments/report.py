"""The report of a folder of results: tables of measured and published values, and figures."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from hyla_lm.evals.experiments import results
from hyla_lm.evals.experiments.results import Point, Section
from hyla_lm.evals.experiments.rows import Estimate, Row
from hyla_lm.evals.latent_codes import table as latent_table
from hyla_lm.evals.pictures import Figure, plt, save
from hyla_lm.evals.tables import NONE, Mean, markdown, shown
from hyla_lm.storage import write_whole

FIGURE_ONLY = "figure only"
HEADER = """
R2 and accuracy are times 100. Errors are standard errors over seeds; published figures have three.
`hyla-lm evals report FOLDER` makes this page from the JSON files in `FOLDER/results`.
"""


def write_report(folder: Path) -> None:
    """Writes report.md and its figures; raises UserError for a folder without results."""
    sections = results.sections(results.read(folder / "results"))
    decoded = latent_table.read(folder)
    is_published = any(section.benchmark.is_published for section in sections)
    parts = ["# Published against measured" if is_published else "# Measured", HEADER]
    for section in sections:
        parts += [*section_lines(section), *latent_table.text(section, decoded)]
        save(folder / f"{section.name}.png", picture(section))
    write_whole(folder / "report.md", "\n".join(parts).encode())


def section_lines(section: Section) -> list[str]:
    """An experiment's conditions, tables, figure and commands."""
    benchmark, experiment = section.benchmark, section.experiment
    lines = [f"## {benchmark.title}: {experiment.title}", "", *conditions(section), ""]
    if experiment.note:
        lines += [experiment.note, ""]
    chosen, main = benchmark.chosen_by, benchmark.main
    if section.has_grid:
        lines += [
            f"Each row at its point of the grid with the best mean {chosen.title} figure:",
            "",
        ]
    lines += [*table(section, section.best(chosen)), ""]
    if section.has_grid:
        unsaid = " (the paper does not say by which it chose)" * benchmark.is_published
        looks = f"which looks at what is to be predicted{unsaid}"
        lines += [f"Each row at its point with the best mean {main.title} figure, {looks}:", ""]
        lines += [*table(section, section.best(main)), ""]
    commands = dict.fromkeys(run.command for run in section.runs)
    return [*lines, f"![{benchmark.metric}]({section.name}.png)", "", "```", *commands, "```", ""]


def conditions(section: Section) -> list[str]:
    """Bullets: preset, split, seeds, schedule, optimizer and device."""
    runs, benchmark = section.runs, section.benchmark
    steps = " or ".join(f"{count:,}" for count in sorted({run.steps for run in runs}))
    is_whole, percent = runs[0].share == 1, f"**{100 * runs[0].share:.3g} %**"
    schedule = f"{steps} steps a run, {'all' if is_whole else percent} of the schedule"
    points = _listed(f"`{results.point_name(run.point)}`" for run in runs)
    made_by = _listed(
        f"{run.summary['device']}, jax {run.summary['jax']}, "
        f"revision {(run.summary['git_revision'] or 'unknown')[:10]}"
        for run in runs
    )
    changed = _listed(f"`{b}`" for b in runs[0].bindings)
    return [
        f"- Preset `{runs[0].preset}`; split {_listed(f'`{run.split}`' for run in runs)}; seeds "
        f"{', '.join(map(str, sorted({run.seed for run in runs})))}.",
        *([f"- **Changed**: {changed}."] if changed else []),
        f"- {schedule}; optimizer {points}.",
        f"- “{benchmark.main.title}” is {benchmark.metric}.",
        f"- Made on {made_by}.",
    ]


def table(section: Section, rows: Sequence[tuple[Row, Point]]) -> list[str]:
    """Each row's measured values at its point, beside the published one."""
    benchmark = section.benchmark
    columns = (benchmark.chosen_by, *benchmark.others)
    has_ceiling = any(ceiling_of(section, row) for row, _ in rows)
    header = ["", benchmark.main.title, *["published", "difference"] * benchmark.is_published]
    header += ["seeds", *(column.title for column in columns)]
    header += ["best possible"] * has_ceiling + ["optimizer"] * section.has_grid
    body = []
    for row, point in rows:
        measured = point.mean(benchmark.main)
        words = row.setting.name.replace("-", ", ").replace("_", " ")
        cells = [f"{row.label}, {words}" if words else row.label, shown(measured)]
        difference = NONE
        if measured and row.published:
            difference = f"{measured.value - row.published[0]:+.2f}"
        beside = [estimate(row.published), difference]
        cells += [*beside * benchmark.is_published, seeds(point, measured)]
        cells += [shown(point.mean(column), column.digits) for column in columns]
        cells += [estimate(ceiling_of(section, row), NONE)] * has_ceiling
        body.append(cells + [f"`{point.name}`"] * section.has_grid)
    return markdown(header, body)


def estimate(value: Estimate | None, missing: str = FIGURE_ONLY) -> str:
    return missing if value is None else f"{value[0]:.2f} ± {value[1]:.2f}"


def seeds(point: Point, measured: Mean | None) -> str:
    sound, count = measured.count if measured else 0, len(point.runs)
    return str(count) if sound == count else f"{sound} of {count}, others diverged"


def ceiling_of(section: Section, row: Row) -> Estimate | None:
    """The best possible accuracy; None if bindings of the task may change its instances."""
    changed = [b for b in section.runs[0].bindings if b.startswith(f"{section.benchmark.task}.")]
    is_same = all(binding.startswith("Sraven.split") for binding in changed)
    return row.setting.ceiling if is_same else None


def _listed(values: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(values))


def picture(section: Section) -> Figure:
    """The published metric with standard errors, each row at the point chosen for it."""
    share = section.runs[0].share
    measured = "measured" if share == 1 else f"measured at {100 * share:.3g} % of the schedule"
    figure = (_curves if section.experiment.x_label else _bars)(section, measured)
    figure.suptitle(f"{section.benchmark.title}: {section.experiment.title}", fontsize=10)
    return figure


def _bars(section: Section, measured: str) -> Figure:
    rows = section.best(section.benchmark.chosen_by)
    figure, axes = plt.subplots(figsize=(8, 1.4 + 0.42 * len(rows)), layout="constrained")
    for place, (row, point) in enumerate(rows):
        ours = point.mean(section.benchmark.main)
        if ours:
            axes.barh(place - 0.2, ours.value, 0.38, xerr=ours.error, color="tab:blue")
        if row.published:
            mean, error = row.published
            axes.barh(place + 0.2, mean, 0.38, xerr=error, color="lightgray")
    axes.set_yticks(range(len(rows)), [row.label for row, _ in rows])
    published = "; gray: published" * section.benchmark.is_published
    axes.set_xlabel(f"{section.benchmark.metric} × 100 (blue: {measured}{published})")
    axes.invert_yaxis()
    return figure


def _curves(section: Section, measured: str) -> Figure:
    rows = section.best(section.benchmark.chosen_by)
    titles = dict.fromkeys(row.setting.panel for row, _ in rows)
    figure, grid = plt.subplots(
        1,
        len(titles),
        figsize=(1.5 + 3.2 * len(titles), 3.6),
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for title, axes in zip(titles, grid[0], strict=True):
        for label in dict.fromkeys(row.label for row, _ in rows):
            points = [
                (row.setting.x, mean.value, mean.error or 0.0)
                for row, point in rows
                if (row.label, row.setting.panel) == (label, title)
                and (mean := point.mean(section.benchmark.main)) is not None
            ]
            x, y, errors = zip(*points, strict=True) if points else ((), (), ())
            axes.errorbar(x, y, errors, marker="o", capsize=3, label=label)
        axes.set(xlabel=section.experiment.x_label, title=title)
        axes.grid(alpha=0.3)
    grid[0][0].set_ylabel(f"{section.benchmark.metric} × 100, {measured}", fontsize=8)
    grid[0][0].legend(fontsize=8)
    return figure
