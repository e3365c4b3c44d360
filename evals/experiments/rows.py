"""What an experiment consists of: rows of gin bindings, with their published values.

Values are R2 and accuracy times 100, mean and standard error, as in the paper's tables.
"""

from collections.abc import Mapping
from dataclasses import dataclass

Estimate = tuple[float, float]


@dataclass(frozen=True)
class Setting:
    """One condition that variants are compared under, at `x` in `panel` of the experiment's figure.

    `schedule` is its number of steps as a share of the benchmark's, `ceiling` the accuracy of the
    best possible solver.
    """

    name: str = ""
    bindings: tuple[str, ...] = ()
    x: float | None = None
    panel: str = ""
    schedule: float = 1.0
    ceiling: Estimate | None = None


@dataclass(frozen=True)
class Row:
    """A variant in a setting."""

    variant: str
    label: str
    bindings: tuple[str, ...] = ()
    published: Estimate | None = None
    setting: Setting = Setting()

    @property
    def name(self) -> str:
        return f"{self.variant}-{self.setting.name}" if self.setting.name else self.variant


@dataclass(frozen=True)
class Experiment:
    """Rows to compare; those with an `x_label` are drawn as curves."""

    title: str
    rows: tuple[Row, ...]
    note: str = ""
    x_label: str = ""


@dataclass(frozen=True)
class Column:
    """A metric of a run's summary: its path there, its scale and its digits in a table."""

    title: str
    path: str
    scale: float = 100.0
    digits: int = 2


@dataclass(frozen=True)
class Benchmark:
    """A task's main metric, the metric that chooses runs, its grid, experiments and gin files.

    `presets` maps names to gin files below gin/evals; the first is the default.
    """

    title: str
    task: str
    metric: str
    main: Column
    chosen_by: Column
    others: tuple[Column, ...]
    grid: Mapping[str, tuple[float, ...]]
    experiments: Mapping[str, Experiment]
    presets: Mapping[str, str]
    is_published: bool = True
