"""What a run shows of itself before it trains: settings that runs are compared by, and texts."""

import dataclasses
import math
import platform
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax

from hyla_lm.logs.sinks import Setting
from hyla_lm.logs.throughput import count_parameters
from hyla_lm.package import described, git_revision
from hyla_lm.parallel.sharding_table import merged, sharding_table
from hyla_lm.run.numerics import numerics_of
from hyla_lm.run.program import Program, versions
from hyla_lm.tasks.protocol import Task

# What people compare first.
FIRST = (
    "ModelConfig.attention",
    "parameters",
    "OptimizerConfig.learning_rate",
    "TrainConfig.steps",
    "TrainConfig.seed",
)
# They change when a run is looked at or ended, not what it learns.
WITHOUT = ("TrainConfig.eval_every", "TrainConfig.hang_seconds")


def settings_of(program: Program[Task]) -> dict[str, Setting]:
    """Settings of model, optimizer and training by their names in gin, and the parameter count."""
    e = program.experiment
    found = {**_settings(e.model), **_settings(e.optimizer), **_settings(e.train)}
    found["ModelConfig.attention"] = " + ".join(e.model.pattern)
    found["parameters"] = count_parameters(program.abstract_state.params)
    names = dict.fromkeys((*FIRST, *found))
    return {name: found[name] for name in names if name not in WITHOUT}


def _settings(config: Any) -> dict[str, Setting]:
    values = {
        f"{type(config).__name__}.{field.name}": getattr(config, field.name)
        for field in dataclasses.fields(config)
    }
    return {name: value for name, value in values.items() if isinstance(value, Setting)}


def texts(program: Program[Task]) -> dict[str, str]:
    """Markdown by tag: the configuration, the parameters, and where the run trains."""
    return {
        "text/config": f"```\n{program.experiment.text}\n```",
        "text/parameters": _parameters(program),
        "text/environment": _environment(program),
    }


def _parameters(program: Program[Task]) -> str:
    params = program.abstract_state.params
    table = merged(sharding_table(params, program.mesh))
    rows = [
        (
            f"`{held.path}`" + (f" ({held.count})" if held.count > 1 else ""),
            " x ".join(map(str, held.shape)),
            f"{held.count * math.prod(held.shape):,}",
            held.dtype,
            " x ".join(axis or "whole" for axis in held.axes),
        )
        for held in table
    ]
    in_all = ("in all", "", f"{count_parameters(params):,}", "", "")
    return _table(("parameter", "shape", "count", "dtype", "mesh axes"), [*rows, in_all])


def _environment(program: Program[Task]) -> str:
    numerics = numerics_of(program.mesh, program.step_hash)
    mesh: Mapping[str, int] = numerics.pop("mesh")
    facts = {
        "code": described(),
        "git_revision": git_revision(),
        "python": platform.python_version(),
        **versions(),
        "processes": jax.process_count(),
        "mesh": ", ".join(f"{axis} {size}" for axis, size in mesh.items()),
        **numerics,
    }
    known = ((name, f"`{value}`") for name, value in facts.items() if value not in (None, ""))
    return _table(("what", "which"), known)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
