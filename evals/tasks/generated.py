"""Shared parts of tasks with generated examples: settings, streams and evaluation sets.

Example `row` of a set is a pure function of the set's key and of `row`, drawn on the device. So
examples do not depend on batch size, processes or resumes, and can be drawn within jit, vmap and
scan.
"""

import hashlib
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh

from hyla_lm.config.declare import as_dict, setting
from hyla_lm.errors import UserError
from hyla_lm.input.row_stream import check_equal_states
from hyla_lm.input.stream import ROW_NUMBERS
from hyla_lm.metrics import Metrics, Pair
from hyla_lm.model.config import Features
from hyla_lm.model.decoder import Decoder
from hyla_lm.parallel.sharding import BatchShard
from hyla_lm.tasks.protocol import Batch, HostBatch, LossFn

Draw = Callable[[jax.Array, Any], dict[str, jax.Array]]


@dataclass(frozen=True)
class GeneratedConfig(ABC):
    """Settings that every generated task has."""

    ranked_by: ClassVar[str] = ""

    held_out_fraction: float = setting(0.5, "share of known combinations held out of training")
    split: str = setting(
        "covering",
        "rule that chooses the held-out ones",
        choices=("covering", "published", "published_new_jax"),
    )
    seed: int = setting(0, "seed of the split and of the evaluation sets", minimum=0)
    evaluation_examples: int = setting(
        16000, "examples of each evaluation set", minimum=1, maximum=2**24
    )
    periodic_examples: int | None = setting(
        None, "examples of each set in periodic evaluations; None takes all", minimum=1
    )
    in_distribution_repeats_training: bool = setting(
        False, "take the first training examples as in-distribution set, as the paper's code does"
    )

    @abstractmethod
    def prepare_task(self, batch_size: int) -> "GeneratedTask":
        """See hyla_lm.tasks.protocol.TaskConfig."""

    def planned_objective(self) -> "GeneratedTask":
        """See hyla_lm.tasks.protocol.TaskConfig: the task needs no data."""
        return self.prepare_task(1)


class GeneratedTask(ABC):
    """A task whose sets of examples draw from different combinations.

    `tables` has the combinations, CxM, of "train" and of each evaluation set. `described` names
    the loss and the metric that a person watches, `closing` the metrics printed at the end, by
    title.
    """

    described: ClassVar[tuple[str, str]] = ("loss_nats", "accuracy")
    closing: ClassVar[Mapping[str, str]] = {"accuracy": "accuracy"}
    config: GeneratedConfig
    tables: Mapping[str, np.ndarray]

    @property
    @abstractmethod
    def io(self) -> Features:
        """See hyla_lm.tasks.protocol.Objective."""

    @property
    @abstractmethod
    def sequence_length(self) -> int:
        """T, tokens an example."""

    @abstractmethod
    def score(
        self, output_BxTxO: jax.Array, batch: Batch, weight_B: jax.Array
    ) -> tuple[Pair, Metrics]:
        """Objective and metrics of the model's outputs; examples have weight 0 or 1."""

    def logged_metrics(self, means: Mapping[str, float]) -> dict[str, float]:
        """See hyla_lm.tasks.protocol.Task."""
        return dict(means)

    def describe(self, values: Mapping[str, float]) -> str:
        """See hyla_lm.tasks.protocol.Task."""
        loss, watched = self.described
        if loss in values:
            return f"loss {values[loss]:.4f}  {watched} {values[watched]:.3f}"
        sets = self.evaluation_names()
        return "  ".join(f"{name} {watched} {values[f'{name}_{watched}']:.3f}" for name in sets)

    def closing_lines(
        self, model: Decoder, params: Any, validation: Mapping[str, float]
    ) -> list[str]:
        """See hyla_lm.tasks.protocol.Task: a line for each evaluation set."""
        lines = [" " * 18 + "".join(f"{title:>20}" for title in self.closing)]
        for name in self.evaluation_names():
            values = [validation[f"{name}_{metric}"] for metric in self.closing.values()]
            lines.append(f"  {name:<16}" + "".join(f"{value:>20.4f}" for value in values))
        return lines

    def split_summary(self, parts: str) -> str:
        """How many of what is combined are trained and held out."""
        trained, held_out = len(self.tables["train"]), len(self.tables["held_out"])
        c = self.config
        return f"{c.split}, seed {c.seed}: {trained} {parts} trained, {held_out} held out"

    @abstractmethod
    def example(self, key: jax.Array, combinations_CxM: jax.Array) -> dict[str, jax.Array]:
        """One example, `features` TxI and more: a pure function, for any table of its shape."""

    def draw(
        self, key: jax.Array, row_B: jax.Array, combinations_CxM: jax.Array
    ) -> dict[str, jax.Array]:
        """The examples of the given rows."""
        example = partial(self.example, combinations_CxM=combinations_CxM)
        return {"row": row_B, **jax.vmap(example)(keys_of_rows(key, row_B))}

    def draw_for_evaluation(
        self, key: jax.Array, row_B: jax.Array, combinations_CxM: jax.Array
    ) -> dict[str, jax.Array]:
        """`draw`, with additional arrays for evaluation."""
        return self.draw(key, row_B, combinations_CxM)

    def loss(self, model: Decoder) -> LossFn:
        """See hyla_lm.tasks.protocol.Task; rows that only fill up a batch have number -1."""

        def loss_fn(
            params: Any, batch: Batch, dropout_key: jax.Array | None
        ) -> tuple[Pair, Metrics]:
            output_BxTxO: Any = model.apply(
                {"params": params},
                batch["features"],
                dropout=dropout_key is not None,
                rngs=None if dropout_key is None else {"dropout": dropout_key},
            )
            weight_B = (batch["row"] >= 0).astype(jnp.float32)
            return self.score(output_BxTxO, batch, weight_B)

        return loss_fn

    def inputs(self, batch: Batch) -> tuple[jax.Array, None]:
        """See hyla_lm.tasks.protocol.Objective."""
        return batch["features"], None

    def train_key(self, seed: int) -> jax.Array:
        """The key of the training set."""
        return key_of(seed, "train")

    def evaluation_key(self, name: str) -> jax.Array:
        """The key of an evaluation set."""
        if name == "in_distribution" and self.config.in_distribution_repeats_training:
            return self.train_key(self.config.seed)
        return key_of(self.config.seed, name)

    def identity(self) -> dict[str, Any]:
        config = as_dict(self.config)
        for name in ("evaluation_examples", "periodic_examples"):
            del config[name]
        table = np.ascontiguousarray(self.tables["train"], np.int32)
        return {**config, "train combinations": hashlib.sha256(table.tobytes()).hexdigest()}

    def batch_shapes(self, batch_size: int) -> dict[str, jax.ShapeDtypeStruct]:
        """See hyla_lm.tasks.protocol.Objective."""
        key, row_B = jax.random.key(0), jax.ShapeDtypeStruct((batch_size,), jnp.int32)
        return jax.eval_shape(self.draw, key, row_B, jnp.asarray(self.tables["train"]))

    def train_stream(
        self, shard: BatchShard, states: list[dict[str, Any]] | None
    ) -> "GeneratedStream":
        if self.config.in_distribution_repeats_training and shard.seed != self.config.seed:
            name = type(self.config).__name__
            raise UserError(
                f"{name}.in_distribution_repeats_training needs {name}.seed = {self.config.seed} "
                f"to be TrainConfig.seed = {shard.seed}: set one to the other."
            )
        state = check_equal_states(states) if states else None
        with one_device():
            key = self.train_key(shard.seed)
        return GeneratedStream(self._drawers["train"], key, shard, state)

    def evaluation_sets(self, shard: BatchShard, final: bool) -> Mapping[str, Iterator[HostBatch]]:
        count, draw = self.evaluation_count(final), self._drawers
        with one_device():
            keys = {name: self.evaluation_key(name) for name in self.evaluation_names()}
        return {
            name: examples_in_order(draw[name], key, count, shard) for name, key in keys.items()
        }

    def evaluation_names(self) -> list[str]:
        """The names of the evaluation sets."""
        return [name for name in self.tables if name != "train"]

    def evaluation_count(self, final: bool) -> int:
        """The number of examples of each evaluation set to evaluate."""
        config = self.config
        limit = None if final else config.periodic_examples
        return min(config.evaluation_examples, limit or config.evaluation_examples)

    @cached_property
    def _drawers(self) -> Mapping[str, Draw]:
        def drawer(name: str) -> Draw:
            draw = self.draw if name == "train" else self.draw_for_evaluation
            table_CxM = self.tables[name]
            return jax.jit(lambda key, row_B: draw(key, row_B, jnp.asarray(table_CxM)))

        return {name: drawer(name) for name in self.tables}


def key_of(seed: int, name: str) -> jax.Array:
    """The key of a set of examples."""
    return jax.random.fold_in(jax.random.key(seed), zlib.crc32(name.encode()))


def keys_of_rows(key: jax.Array, row_B: jax.Array) -> jax.Array:
    """A key for each example of a set."""
    return jax.vmap(lambda row: jax.random.fold_in(key, row))(row_B)


def one_device() -> AbstractContextManager[object]:
    """Computes on one device of this process, not on the mesh: each process draws its own rows."""
    mesh = Mesh(np.array(jax.local_devices()[:1]), ("local",), axis_types=(AxisType.Auto,))
    return jax.set_mesh(mesh)


class GeneratedStream:
    """Endless batches of one process's shard; the state is the number of rows drawn by all."""

    def __init__(
        self,
        draw: Draw,
        key: jax.Array,
        shard: BatchShard,
        state: Mapping[str, Any] | None = None,
    ):
        self._draw, self._key, self._batch_size = draw, key, shard.batch_size
        self._places = np.array(shard.places)
        self._rows_drawn = int(state["rows_drawn"]) if state else 0

    def __next__(self) -> HostBatch:
        rows = ((self._rows_drawn + self._places) % ROW_NUMBERS).astype(np.int32)
        self._rows_drawn += self._batch_size
        with one_device():
            return jax.device_get(self._draw(self._key, rows))

    def get_state(self) -> dict[str, Any]:
        return {"rows_drawn": self._rows_drawn}

    def close(self) -> None:
        """Nothing runs ahead."""


def examples_in_order(
    draw: Draw, key: jax.Array, count: int, shard: BatchShard
) -> Iterator[HostBatch]:
    """One process's shard of the first `count` rows in whole batches; later rows are -1."""
    places = np.array(shard.places, np.int32)
    for start in range(0, count, shard.batch_size):
        rows = start + places
        with one_device():
            batch = jax.device_get(draw(key, np.where(rows < count, rows, -1)))
        yield batch
