"""The picture of a coordinate check: quantities over width, standard beside muP."""

import io
from collections.abc import Sequence

from hyla_lm.errors import UserError
from hyla_lm.tools.coordcheck.report import CHANGE, SIZE, Slope

DPI = 90


def load_matplotlib() -> None:
    """Raises UserError if matplotlib is not installed."""
    try:
        import matplotlib
    except ImportError as error:
        raise UserError(
            "--output draws a picture with matplotlib: pip install 'hyla_lm[evals]'."
        ) from error
    matplotlib.use("Agg")


def draw(found: Sequence[Slope], widths: Sequence[int]) -> bytes:
    """A PNG: a row for each variant; sizes at the start and changes at the end over width."""
    import matplotlib.pyplot as plt

    variants = list(dict.fromkeys(s.variant for s in found))
    kinds = list(dict.fromkeys(s.parametrisation for s in found))
    last = max(s.step for s in found)
    columns = [(kind, part) for part in (SIZE, CHANGE) for kind in kinds]
    figure, grid = plt.subplots(
        len(variants),
        len(columns),
        figsize=(4.2 * len(columns), 4.4 * len(variants)),
        layout="constrained",
        squeeze=False,
    )
    for row, variant in zip(grid, variants, strict=True):
        for axes, (kind, part) in zip(row, columns, strict=True):
            step = 0 if part == SIZE else last
            for s in found:
                place = (s.variant, s.parametrisation, s.part, s.step)
                if place == (variant, kind, part, step):
                    style = "-o" if s.judged else ":o"
                    label = f"{s.quantity} {s.slope:+.2f}"
                    axes.plot(widths, s.values, style, label=label, markersize=3)
            title = "size at the start" if part == SIZE else f"change after {last} steps"
            axes.set_title(f"{variant}, {kind}: {title}", fontsize=9)
            axes.set_xscale("log", base=2)
            axes.set_yscale("log", base=2)
            axes.set_xticks(widths, [str(width) for width in widths], minor=False)
            below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.1), "frameon": False}
            axes.legend(fontsize=7, ncols=2, title="slope", title_fontsize=7, **below)
        for axes in row[1 : len(kinds)]:
            axes.sharey(row[0])
        for axes in row[len(kinds) + 1 :]:
            axes.sharey(row[len(kinds)])
    figure.supxlabel("model_dim")
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=DPI)
    plt.close(figure)
    return png.getvalue()
