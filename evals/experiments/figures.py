"""Pictures of an experiment: bars beside the published ones, or curves, by matplotlib."""

import io

from hyla_lm.errors import UserError
from hyla_lm.evals.experiments.results import Section

try:
    import matplotlib
except ImportError as error:
    raise UserError("Figures need matplotlib: pip install 'hyla_lm[evals]'.") from error

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

DPI = 110


def draw(section: Section) -> bytes:
    """A PNG of the published metric with standard errors, each row at the point chosen for it."""
    figure = _curves(section) if section.experiment.x_label else _bars(section)
    figure.suptitle(f"{section.benchmark.title}: {section.experiment.title}", fontsize=10)
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=DPI)
    plt.close(figure)
    return png.getvalue()


def _bars(section: Section) -> Figure:
    rows = section.best(section.benchmark.chosen_by)
    figure, axes = plt.subplots(figsize=(8, 1.4 + 0.42 * len(rows)), layout="constrained")
    for place, (row, point) in enumerate(rows):
        measured = point.mean(section.benchmark.main)
        if measured:
            axes.barh(place - 0.2, measured.value, 0.38, xerr=measured.error, color="tab:blue")
        if row.published:
            mean, error = row.published
            axes.barh(place + 0.2, mean, 0.38, xerr=error, color="lightgray")
    axes.set_yticks(range(len(rows)), [row.label for row, _ in rows])
    published = "; gray: published" * section.benchmark.is_published
    axes.set_xlabel(f"{section.benchmark.metric} × 100 (blue: {_measured(section)}{published})")
    axes.invert_yaxis()
    return figure


def _curves(section: Section) -> Figure:
    rows = section.best(section.benchmark.chosen_by)
    panels = dict.fromkeys(row.setting.panel for row, _ in rows)
    size = (1.5 + 3.2 * len(panels), 3.6)
    figure, grid = plt.subplots(
        1, len(panels), figsize=size, sharey=True, squeeze=False, layout="constrained"
    )
    for panel, axes in zip(panels, grid[0], strict=True):
        for label in dict.fromkeys(row.label for row, _ in rows):
            _curve(axes, section, label, panel)
        axes.set(xlabel=section.experiment.x_label, title=panel)
        axes.grid(alpha=0.3)
    grid[0][0].set_ylabel(f"{section.benchmark.metric} × 100, {_measured(section)}", fontsize=8)
    grid[0][0].legend(fontsize=8)
    return figure


def _curve(axes: Axes, section: Section, label: str, panel: str) -> None:
    x, y, errors = [], [], []
    for row, point in section.best(section.benchmark.chosen_by):
        mean = point.mean(section.benchmark.main)
        is_here = (row.label, row.setting.panel) == (label, panel)
        if is_here and mean is not None and row.setting.x is not None:
            x.append(row.setting.x)
            y.append(mean.value)
            errors.append(mean.error or 0.0)
    axes.errorbar(x, y, errors, marker="o", capsize=3, label=label)


def _measured(section: Section) -> str:
    share = section.runs[0].share
    return "measured" if share == 1 else f"measured at {100 * share:.3g} % of the schedule"
