"""Fuzzy-logic examples: the function by its definition, distribution, purity and bad sizes."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hyla_lm.errors import UserError
from hyla_lm.evals.tasks.fuzzy_logic import FuzzyLogic, fuzzy_function
from hyla_lm.evals.tasks.regression import regression_metrics
from hyla_lm.metrics import means, to_host
from hyla_lm.parallel.batch_shard import BatchShard

SMALL = FuzzyLogic(sequence_length=8, evaluation_examples=50)


def test_functions_of_a_point_computed_by_hand() -> None:
    x_1xL = jnp.array([[0.9, 0.3, 0.6, 0.2]])
    # Term 15 is min(.9, .3, .6, .2), term 8 min(.9, 1 - .3, 1 - .6, 1 - .2), term 0 min(1 - x).
    expected = {(15, 15): 0.2, (8, 15): 0.4, (0, 15): 0.2, (0, 8): 0.4, (0, 0): 0.1}
    for terms, value in expected.items():
        # 1 - x rounds to 6e-8.
        np.testing.assert_allclose(fuzzy_function(x_1xL, jnp.array(terms)), [value], rtol=1e-6)


def test_on_booleans_it_is_the_boolean_function() -> None:
    points = np.array([[i >> 2 & 1, i >> 1 & 1, i & 1] for i in range(8)], np.float32)
    values = fuzzy_function(jnp.asarray(points), jnp.array([2, 5]))
    assert values.tolist() == [float(i in (2, 5)) for i in range(8)]


@pytest.mark.parametrize(
    "config",
    [SMALL, FuzzyLogic(num_variables=3, num_terms=3, sequence_length=5, unknown_terms=())],
)
def test_every_set_draws_its_own_combinations_alone(config: FuzzyLogic) -> None:
    task = config.prepare_task(8)
    rows, key, draw = jnp.arange(3000), task.train_key(0), jax.jit(task.draw)
    for table in task.tables.values():
        batch = jax.device_get(draw(key, rows, table))
        drawn, counts = np.unique(batch["terms"], axis=0, return_counts=True)
        np.testing.assert_array_equal(drawn, np.array(sorted(table.tolist())))
        # 3000 draws of C: each count is within five standard deviations of its mean.
        mean = 3000 / len(table)
        assert (np.abs(counts - mean) < 5 * mean**0.5).all()
        points = batch["features"][:, :, :-1]
        assert points.min() >= 0 and points.max() < 1
        # The mean of n uniform numbers has a standard deviation of 0.29 / sqrt(n).
        assert abs(points.mean() - 0.5) < 5 * 0.29 / points.size**0.5
        assert (batch["features"][:, -1, -1] == 0).all()
        values = jax.vmap(fuzzy_function)(points, batch["terms"])
        np.testing.assert_array_equal(values[:, :-1], batch["features"][:, :-1, -1])
        np.testing.assert_array_equal(values[:, -1], batch["target"])
    assert ("unknown_terms" in task.tables) == bool(config.unknown)


def test_unknown_terms_stay_out_of_the_other_sets() -> None:
    tables = FuzzyLogic(unknown_terms=(3, 0, 7)).prepare_task(8).tables
    for name in ("train", "held_out", "in_distribution"):
        assert not np.isin(tables[name], [0, 3, 7]).any()
    assert sorted(map(sorted, tables["unknown_terms"].tolist())) == [[0, 3], [0, 7], [3, 7]]


def test_an_example_is_a_function_of_key_and_row_alone() -> None:
    task = SMALL.prepare_task(8)
    table, key = jnp.asarray(task.tables["train"]), task.train_key(0)
    rows = jnp.array([5, 0, 9, 5])
    draw = jax.jit(task.draw)
    batch, again = (jax.device_get(draw(key, rows, table)) for _ in range(2))
    assert batch["row"].tolist() == [5, 0, 9, 5]
    unjitted = task.draw(key, rows, table)
    elsewhere = jax.device_get(draw(key, jnp.array([0, 5, 1, 2]), table))
    for name, values in batch.items():
        np.testing.assert_array_equal(values, again[name])
        np.testing.assert_array_equal(values, unjitted[name])
        np.testing.assert_array_equal(values[0], values[3])
        np.testing.assert_array_equal(values[:2], elsewhere[name][1::-1])
    assert not np.array_equal(batch["features"][0], batch["features"][1])
    other = draw(task.train_key(1), rows, table)
    assert not np.array_equal(batch["features"], other["features"])


def test_seeds_in_vmap_and_steps_in_scan_equal_single_calls() -> None:
    tasks = [FuzzyLogic(sequence_length=8, seed=seed).prepare_task(8) for seed in range(3)]
    keys = jnp.stack([task.train_key(seed) for seed, task in enumerate(tasks)])
    tables = jnp.stack([jnp.asarray(task.tables["train"]) for task in tasks])

    def steps(key: jax.Array, table: jax.Array):
        def step(first: jax.Array, _: None):
            return first + 4, tasks[0].draw(key, first + jnp.arange(4), table)

        return jax.lax.scan(step, jnp.int32(0), length=3)[1]

    together = jax.device_get(jax.jit(jax.vmap(steps))(keys, tables))
    for seed, task in enumerate(tasks):
        stream = task.train_stream(BatchShard(4, seed), None)
        for step in range(3):
            for name, values in next(stream).items():
                np.testing.assert_array_equal(together[name][seed, step], values)


def test_processes_share_each_batch_and_a_state_goes_on() -> None:
    task = SMALL.prepare_task(8)
    whole = task.train_stream(BatchShard(8), None)
    batches = [next(whole) for _ in range(4)]
    for index in range(2):
        part = task.train_stream(BatchShard(8, 0, index, 2), None)
        next(part)
        state = part.state()
        assert state == {"rows_drawn": 8}
        resumed = task.train_stream(BatchShard(8, 0, index, 2), [state, state])
        for batch in batches[1:]:
            for name, values in next(resumed).items():
                np.testing.assert_array_equal(values, batch[name][4 * index : 4 * index + 4])


@pytest.mark.parametrize("repeats", [False, True])
def test_the_in_distribution_set_is_fresh_or_repeats_training(repeats: bool) -> None:
    config = FuzzyLogic(
        sequence_length=8, evaluation_examples=16, in_distribution_repeats_training=repeats
    )
    task = config.prepare_task(8)
    trained = next(task.train_stream(BatchShard(8), None))
    evaluated = next(task.evaluation_sets(BatchShard(8), True)["in_distribution"])
    assert np.array_equal(trained["features"], evaluated["features"]) == repeats
    if repeats:
        with pytest.raises(UserError, match=r"needs FuzzyLogic\.seed = 0 to be TrainConfig\.seed"):
            task.train_stream(BatchShard(8, 1), None)


@pytest.mark.parametrize(("final", "count"), [(True, 50), (False, 20)])
def test_evaluation_sets_are_padded_to_whole_batches(final: bool, count: int) -> None:
    config = FuzzyLogic(sequence_length=8, evaluation_examples=50, periodic_examples=20)
    sets = config.prepare_task(16).evaluation_sets(BatchShard(16), final)
    assert list(sets) == ["in_distribution", "held_out", "unknown_terms"]
    rows = np.concatenate([batch["row"] for batch in sets["held_out"]])
    assert len(rows) % 16 == 0 and rows[rows >= 0].tolist() == list(range(count))
    assert (rows[count:] == -1).all()


def test_metrics_weigh_sequences_and_leave_padding_out() -> None:
    prediction, target = jnp.array([0.5, 0.2, 9.0]), jnp.array([0.1, 0.4, 0.0])
    variance, weight = jnp.array([0.16, 0.02, 1.0]), jnp.array([1.0, 1.0, 0.0])
    sums = to_host(regression_metrics(prediction, target, variance, weight))
    values = means(sums)
    # float32 squares of these decimals are right to 1e-7.
    assert values["mse"] == pytest.approx((0.16 + 0.04) / 2, rel=1e-5)
    assert values["r2"] == pytest.approx(((1 - 1) + (1 - 2)) / 2, abs=1e-5)
    task = SMALL.prepare_task(8)
    logged = task.logged_metrics(values)
    assert logged["r2_pooled"] == pytest.approx(1 - 0.1 / 0.15**2, rel=1e-5)
    assert "target" not in logged
    outputs = jnp.zeros((3, 5, 1)).at[:, -1, 0].set(prediction)
    objective, metrics = task.score(outputs, {"target": target, "variance": variance}, weight)
    assert objective == metrics["mse"] and to_host(metrics) == sums


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_terms": 13}, r"num_terms = 13 is more than the 12 known terms"),
        ({"num_terms": 5}, r"num_terms = 5 is more than the 4 unknown terms"),
        ({"num_variables": 1}, r"holds out 0 and trains on 1"),
        ({"unknown_terms": (1, 1)}, r"must be different numbers below 16"),
        ({"unknown_terms": (1, 16)}, r"must be different numbers below 16"),
        ({"num_variables": 11}, r"must be at most 10"),
        ({"num_variables": 0}, r"FuzzyLogic\.num_variables = 0 must be at least 1"),
        ({"num_terms": 0}, r"FuzzyLogic\.num_terms = 0 must be at least 1"),
        ({"sequence_length": 1}, r"FuzzyLogic\.sequence_length = 1 must be at least 2"),
        ({"split": "random"}, r"FuzzyLogic\.split = 'random' must be one of"),
        ({"evaluation_examples": 0}, r"FuzzyLogic\.evaluation_examples = 0 must be at least 1"),
    ],
)
def test_bad_sizes_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        FuzzyLogic(**settings).prepare_task(8)


def test_rows_that_fill_a_batch_have_no_weight() -> None:
    task = SMALL.prepare_task(8)
    batch = task.draw(task.train_key(0), jnp.array([3, 7, -1]), jnp.asarray(task.tables["train"]))
    model = SimpleNamespace(apply=lambda params, features, **_: features[:, -1:, :1])
    (_, count), metrics = task.loss(model)({}, batch, None)
    assert count == 2 and all(counted == 2 for _, counted in metrics.values())
