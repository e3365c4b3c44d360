"""Suites of a language model's run: TrainConfig.suites = (@FuzzyLogicSuite(),).

A suite trains small models, one for each seed, with the attention of the language model: its
variant or pattern and its value activation. The suite's gin file sets everything else. With `every`
the suite trains alongside: after that many steps of the run it catches up to the run's share.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from hyla_lm.config.declare import configurable, setting
from hyla_lm.config.read_experiment import read_experiment
from hyla_lm.errors import UserError
from hyla_lm.evals.populations.population import check_updates, generated_task
from hyla_lm.evals.populations.train_many import open_member, train_many
from hyla_lm.model.config import ModelConfig
from hyla_lm.parallel.mesh import MeshConfig, make_mesh
from hyla_lm.run.program import make_program


@dataclass(frozen=True)
class SuiteConfig:
    """Settings that every suite has."""

    gin_file: str = setting("", "gin file of the small models; a path from here or of the package")
    bindings: tuple[str, ...] = setting(
        (), "bindings over gin_file, such as ('TrainConfig.steps = 5000',); the run sets attention"
    )
    seeds: tuple[int, ...] = setting((0, 1, 2), "seeds of the small models, which train together")
    every: int | None = setting(
        None,
        "train the suite every so many steps of the run; None trains it at the end",
        minimum=1,
    )
    name: str = setting("", "name of its folder and in its tags")

    def check(self) -> None:
        title = type(self).__name__
        if not self.seeds or len(set(self.seeds)) < len(self.seeds) or min(self.seeds) < 0:
            raise UserError(
                f"{title}.seeds = {self.seeds} must be different numbers from 0, at least one."
            )
        if not self.name.replace("_", "").replace("-", "").isalnum():
            raise UserError(f"{title}.name = {self.name!r} must be of letters, digits, _ and -.")

    def check_model(self, model: ModelConfig) -> None:
        """See hyla_lm.tasks.protocol.Suite."""
        title = type(self).__name__
        try:
            bindings = self._bindings(model, self.seeds[0])
            experiment = read_experiment([self.gin_file], bindings)
            program = make_program(experiment, jax.local_devices()[:1])
            generated_task(program)
            check_updates(program)
        except UserError as error:
            raise UserError(
                f"{title} cannot train with the run's attention {model.attention!r}: {error} "
                f"Its settings are those of {self.gin_file} and {title}.bindings."
            ) from None

    def run(self, model: ModelConfig, folder: str, share: float) -> dict[str, float]:
        """See hyla_lm.tasks.protocol.Suite. Metrics are means over seeds, with standard errors."""
        with jax.set_mesh(make_mesh(MeshConfig(), jax.local_devices()[:1])):
            members = [
                open_member([self.gin_file], self._bindings(model, s), f"{folder}/seed{s}")
                for s in self.seeds
            ]
            until = int(members[0].program.experiment.train.steps * share)
            metrics = mean_metrics(train_many(members, until)) if until else {}
        sound = len(self.seeds) - int(metrics.get("diverged_runs", len(self.seeds)))
        if sound:
            described = members[0].program.task.describe(metrics)
            seeds = f"means over {sound} of {len(self.seeds)} seeds"
            print(f"suite {self.name}: {described} ({seeds})", flush=True)
        return metrics

    def _bindings(self, model: ModelConfig, seed: int) -> list[str]:
        attention = [
            f"ModelConfig.attention = {model.attention!r}",
            f"ModelConfig.value_activation = {model.value_activation!r}",
        ]
        return [*self.bindings, *attention, f"SEED = {seed}"]


@configurable
@dataclass(frozen=True)
class FuzzyLogicSuite(SuiteConfig):
    """Fuzzy logic in context, trained with the run's attention."""

    gin_file: str = setting("gin/evals/fuzzy_logic_strict.gin", "gin file of the small models")
    name: str = setting("fuzzy_logic", "name of its folder and in its tags")
    check = SuiteConfig.check


@configurable
@dataclass(frozen=True)
class SravenSuite(SuiteConfig):
    """Symbolic Raven matrices, trained with the run's attention."""

    gin_file: str = setting("gin/evals/sraven_strict.gin", "gin file of the small models")
    name: str = setting("sraven", "name of its folder and in its tags")
    check = SuiteConfig.check


def mean_metrics(summaries: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Means and `_standard_error`s of the validation metrics over runs that are finite.

    `diverged_runs` counts the other runs.
    """
    finite = [
        s["validation"]
        for s in summaries
        if s["validation"] and all(map(math.isfinite, s["validation"].values()))
    ]
    metrics: dict[str, float] = {"diverged_runs": len(summaries) - len(finite)}
    for name in finite[0] if finite else ():
        values = np.array([validation[name] for validation in finite])
        metrics[name] = float(values.mean())
        if len(values) > 1:
            error = values.std(ddof=1) / len(values) ** 0.5
            metrics[f"{name}_standard_error"] = float(error)
    return metrics
