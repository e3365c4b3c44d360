"""Every number that a setting accepts does what it says; any other is refused by its name."""

import dataclasses
import math
import operator
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hyla_lm.config import settings
from hyla_lm.config.declare import LARGEST
from hyla_lm.config.experiment import CheckpointConfig, Experiment, LogConfig, TrainConfig
from hyla_lm.errors import UserError
from hyla_lm.evals.tasks.fuzzy_logic import FuzzyLogic
from hyla_lm.evals.tasks.generated import GeneratedConfig, GeneratedStream
from hyla_lm.evals.tasks.hyperteacher import Hyperteacher
from hyla_lm.evals.tasks.match3 import Match3
from hyla_lm.evals.tasks.sraven import Sraven
from hyla_lm.evals.tasks.sraven_rules import row_likelihoods
from hyla_lm.input.prepared import Rows
from hyla_lm.model.config import ModelConfig
from hyla_lm.model.layers import relative_buckets
from hyla_lm.model.width import factors_of
from hyla_lm.optim import OptimizerConfig, make_optimizer, make_schedule
from hyla_lm.parallel.mesh import MeshConfig, make_mesh
from hyla_lm.parallel.sharding import BatchShard, path_of
from hyla_lm.run.program import Program, check_memory, checked_mesh, lay_out
from hyla_lm.tasks.decoding import Sampling, choose
from hyla_lm.tasks.language_model import LanguageModel
from hyla_lm.tasks.protocol import TaskConfig
from hyla_lm.update_policy import UpdatePolicy
from tests.tiny_runs import train, write_gin

WHOLE = (-1, 0, 1, 2**31 - 1, 2**31, 2**32, 2**63)
REAL = (-1.0, 0.0, 1.0, 1e-38, 2e-38, 1e38, 1e39, math.inf, math.nan, 10**400)
WITHIN = dict(minimum=operator.ge, above=operator.gt, below=operator.lt, maximum=operator.le)
SMALL = dict(num_layers=1, model_dim=4, num_heads=2, head_dim=2, mlp_dim=4, num_experts=2)
FORMS: dict[str, Any] = dict(dtype="float32", feedforward="moe", experts_per_token=1)
# What a number needs beside it to have a meaning, by class and by setting.
BESIDE: dict[str, dict[str, Any]] = {
    "ModelConfig": {**SMALL, **FORMS},
    "ModelConfig.num_layers": {"scan_layers": True},
    "ModelConfig.head_dim": {"positions": "none"},
    "ModelConfig.num_kv_heads": {"attention": "softmax"},
    "ModelConfig.relative_buckets": {"positions": "relative", "relative_max_distance": 2**12},
    "ModelConfig.relative_max_distance": {"positions": "relative"},
    "ModelConfig.max_length": {"positions": "learned"},
    "ModelConfig.base_head_dim": {"base_width": 4},
    "OptimizerConfig": {"warmup_steps": 10},
    "OptimizerConfig.learning_rate": {"weight_decay": 0.0},
    "OptimizerConfig.decay_share": {"schedule": "wsd"},
    "OptimizerConfig.decay_begins": {"schedule": "wsd"},
    "LanguageModel": {"vocab_size": 320, "sequence_length": 16},
    "RowMixture": {"rows": (Rows(),) * 2, "names": ("a", "b")},
}
GRADIENTS = {"kernel": np.array([3e-3, -4e-12, 1e-20, 0.0]), "bias": np.array([1e-3])}
SHARD = BatchShard(2)
LAST = {"rows_drawn": 2**31 - 2}
LONG = ("steps", "batch_size", "accumulate_steps", "sequence_length", "vocab_size")
LONG += ("samples", "profile")
SIZES = ("model_dim", "num_heads", "head_dim", "value_dim", "mlp_dim", "num_experts")
SIZES += ("experts_per_token", "base_width")
PLAIN = {"positions": "none", "feedforward": "moe"}
EXTREMES: dict[str, dict[str, dict[str, Any]]] = {
    "minimum": {
        "ModelConfig": dict.fromkeys(SIZES, 1) | {"logit_soft_cap": 1e-3, **PLAIN},
        "OptimizerConfig": {"b1": 0, "b2": 0, "epsilon": 1e-18, "clip_norm": 1e-6},
    },
    "maximum": {
        "ModelConfig": {"attention_dropout": 0.9999, "logit_soft_cap": 1e6},
        "OptimizerConfig": {"b1": 0.99999, "b2": 0.99999, "final_fraction": 1},
        "LanguageModel": {"z_loss": 1000},
    },
}


def edges(kind: type) -> Iterator[tuple[str, Any, bool]]:
    """Names and values of the numbers of a class, and whether the declared bounds have them."""
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        hint, bounds = str(hints[field.name]), field.metadata.get("bounds", {})
        is_real = "float" in hint
        if not is_real and "int" not in hint:
            continue
        bounds = bounds if is_real else {"maximum": LARGEST} | bounds
        near = [
            math.nextafter(bound, sign * math.inf) if is_real else bound + sign
            for name, bound in bounds.items()
            for sign in ((-1,) if name in ("minimum", "below") else (1,))
        ]
        for value in dict.fromkeys([*(REAL if is_real else WHOLE), *bounds.values(), *near]):
            fits = not is_real or value == 0 or 1.2e-38 <= abs(value) <= 3.4e38
            fits &= all(WITHIN[name](value, bound) for name, bound in bounds.items())
            pair = "tuple[int, int]" in hint or "tuple[float" in hint
            yield field.name, (value, 1) if pair else (value,) if "tuple" in hint else value, fits


def program(model: ModelConfig, task: TaskConfig, **fields: Any) -> Program:
    """The program of a run; raises UserError where it does not fit this machine."""
    train = TrainConfig(**{"steps": 4, "batch_size": 2, **fields, "task": task})
    others = MeshConfig(), CheckpointConfig(), LogConfig()
    experiment = Experiment(train, model, OptimizerConfig(warmup_steps=1), *others, text="")
    laid_out = lay_out(experiment, task.planned_objective(), checked_mesh(experiment))
    check_memory(laid_out)
    return laid_out


def use_model(config: ModelConfig) -> None:
    """It fits, its factors are numbers, and its buckets rise with distance."""
    laid_out = program(config, LanguageModel(vocab_size=32, sequence_length=8))
    paths = jax.tree_util.tree_leaves_with_path(laid_out.abstract_state.params)
    for path, _ in paths:
        factors = factors_of(config, path_of(path))
        assert 0 < factors.deviation < 1e38 and 0 < factors.rate < 1e38
    if config.positions == "relative":
        buckets, distance_D = config.relative_buckets, jnp.arange(2**20)
        bucket_Dx1 = relative_buckets(
            distance_D, jnp.zeros(1, int), buckets, config.relative_max_distance
        )
        assert bucket_Dx1.min() == 0 and bucket_Dx1.max() == buckets - 1
        assert (jnp.diff(bucket_Dx1[:, 0]) >= 0).all()


def use_optimizer(config: OptimizerConfig) -> None:
    """Rates stay within the peak, and updates are those of AdamW in double precision."""
    schedule = make_schedule(config, 200)
    rates = np.array([schedule(step) for step in (0, 1, 50, 199, 200)])
    assert (rates >= 0).all() and (rates <= np.float32(config.learning_rate)).all()
    optimizer = make_optimizer(config, lambda _: jnp.float32(config.learning_rate))
    params = {name: jnp.full(len(leaf), 2.0) for name, leaf in GRADIENTS.items()}
    state = optimizer.init(params)
    norm = np.linalg.norm(np.concatenate([*GRADIENTS.values()]))
    mean = square = {name: np.zeros(len(leaf)) for name, leaf in GRADIENTS.items()}
    for count in (1, 2):
        gradients = {name: jnp.float32(leaf / count) for name, leaf in GRADIENTS.items()}
        update, state = optimizer.update(gradients, state, params)
        clip = 1.0 if config.clip_norm is None else min(1.0, config.clip_norm / (norm / count))
        for name, leaf in GRADIENTS.items():
            g = clip * leaf / count
            mean = {**mean, name: config.b1 * mean[name] + (1 - config.b1) * g}
            square = {**square, name: config.b2 * square[name] + (1 - config.b2) * g**2}
            root = np.sqrt(square[name] / (1 - config.b2**count)) + config.epsilon
            decay = config.weight_decay * 2.0 if name == "kernel" else 0
            direction = mean[name] / (1 - config.b1**count) / root + decay
            expected = -config.learning_rate * direction
            np.testing.assert_allclose(update[name], expected, rtol=0.02, atol=1e-37)


def use_task(config: TaskConfig) -> None:
    program(ModelConfig(**SMALL, **FORMS), config)


def use_train(config: TrainConfig) -> None:
    fields = {name: value for name, value in vars(config).items() if name != "task"}
    program(ModelConfig(**SMALL, **FORMS), FuzzyLogic(), **fields)


def use_nothing(config: Any) -> None:
    """Libraries and comparisons of steps take any whole number; a run below has the largest."""


OTHERS = ("LogConfig", "CheckpointConfig", "UpdatePolicy", "WarmStart", "C4Stream", "SeqioTask")
OTHERS += ("RowMixture", "SampleCorpus", "FuzzyLogicSuite", "SravenSuite")
# What the numbers of a class are for, by its name.
USES: dict[str, Callable[[Any], object]] = {
    "ModelConfig": use_model,
    "OptimizerConfig": use_optimizer,
    "TrainConfig": use_train,
    "MeshConfig": make_mesh,
    **dict.fromkeys(("LanguageModel", "FuzzyLogic", "Sraven", "Match3", "Hyperteacher"), use_task),
    **dict.fromkeys(OTHERS, use_nothing),
}
CLASSES = [kind for kind in settings.classes() if kind.__module__.startswith("hyla_lm.")]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_a_number_is_refused_by_its_name_or_does_what_it_says(kind: type) -> None:
    for name, value, fits in edges(kind):
        binding = f"{kind.__name__}.{name}"
        fields = {**BESIDE.get(kind.__name__, {}), **BESIDE.get(binding, {}), name: value}
        try:
            config = kind(**fields)
            assert fits, f"{binding} = {value} is out of bounds"
            USES[kind.__name__](config)
        except UserError as error:
            assert name in str(error) or (fits and kind.__name__ in str(error)), f"{value}: {error}"


@pytest.mark.parametrize("name", ["max_tokens", "temperature", "top_k", "top_p", "seed"])
def test_a_number_of_sampling_is_refused_by_its_name_or_chooses_so(name: str) -> None:
    logits = jnp.array([-50.0, 3.0, 60.0, 10.0])
    for value in (*WHOLE, 2**32 - 1, *REAL, 1e-6, 1e6, 1 - 2**-53):
        if name in ("max_tokens", "top_k", "seed") and not isinstance(value, int):
            continue
        try:
            sampling = Sampling(**{name: value})
        except UserError as error:
            assert f"{name}=" in str(error)
            continue
        keys = jax.random.split(jax.random.key(sampling.seed), 8)
        chosen = {int(choose(logits, key, sampling)) for key in keys}
        assert chosen == {2} or (sampling.temperature > 1 and chosen <= {0, 1, 2, 3})


@pytest.mark.parametrize(
    "config",
    [
        FuzzyLogic(num_variables=8),
        Hyperteacher(seed=2**21, num_modules=100, hidden_dim=256, input_dim=256),
        Match3(modulus=200, num_frequencies=1000),
        Sraven(num_symbols=256, grid_rows=10),
    ],
    ids=lambda config: type(config).__name__,
)
def test_the_largest_examples_are_drawn(config: GeneratedConfig) -> None:
    task = config.prepare_task(2)
    stream = GeneratedStream(task._drawers["train"], task.train_key(0), SHARD, LAST)
    batches = [next(stream) for _ in range(2)]
    assert [batch["row"].tolist() for batch in batches] == [[2**31 - 2, 2**31 - 1], [0, 1]]
    assert all(np.isfinite(batch["features"]).all() for batch in batches)
    if isinstance(config, Sraven):
        assert row_likelihoods(config.grid_rows, config.num_symbols).min() ** 4 > 0


@pytest.mark.parametrize(("which", "missing"), [("minimum", 0), ("maximum", LARGEST)])
def test_a_run_takes_the_smallest_and_the_largest_of_its_numbers(
    tiny_rows: Rows, tmp_path: Path, which: str, missing: int
) -> None:
    """All together, but for those that make it long or large."""
    lines = ["TrainConfig.steps = 3", "OptimizerConfig.warmup_steps = 1"]
    for kind_name, fields in EXTREMES[which].items():
        lines += [f"{kind_name}.{name} = {value!r}" for name, value in fields.items()]
    for kind in (TrainConfig, LogConfig, CheckpointConfig, LanguageModel, UpdatePolicy):
        for field in dataclasses.fields(kind):
            if "int" in str(field.type) and field.name not in LONG:
                value = field.metadata["bounds"].get(which, missing)
                lines.append(f"{kind.__name__}.{field.name} = {value}")
    assert train(write_gin(tmp_path, tiny_rows, "\n".join(lines)), tmp_path / "run") == 0
