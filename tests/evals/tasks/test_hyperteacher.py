"""Hyperteacher: targets by definition, and teachers of seeds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hyla_lm.evals.tasks.hyperteacher import Hyperteacher, module
from hyla_lm.parallel.sharding import BatchShard

TASK = Hyperteacher().prepare_task(8)
ROWS = jnp.arange(20)
draw = jax.jit(TASK.draw)


def test_targets_are_those_of_the_combined_network() -> None:
    """In numpy: relu of the combined layer, read out with alternating signs."""
    theta_MxHxL = np.array([module(jnp.int32(m), 8, 4) for m in range(8)])
    size = (8 * (1 / 2 - 1 / (2 * np.pi))) ** -0.5
    batch = jax.device_get(draw(TASK.train_key(0), ROWS, TASK.tables["held_out"]))
    for row in ROWS:
        x_NxL, modules, z = (batch[n][row] for n in ("features", "modules", "z"))
        z = z / (z**2).sum() ** 0.5
        layer_HxL = sum(a * theta_MxHxL[m] for a, m in zip(z, modules, strict=True))
        hidden_NxH = np.maximum(x_NxL[:, :4] @ layer_HxL.T, 0)
        target_N = size * (hidden_NxH[:, ::2].sum(1) - hidden_NxH[:, 1::2].sum(1))
        # Sums of eight float32 numbers of order 1, in another order: a few 1e-6.
        np.testing.assert_allclose(x_NxL[:-1, 4], target_N[:-1], atol=1e-5)
        assert batch["target"][row] == pytest.approx(target_N[-1], abs=1e-5)
        assert batch["variance"][row] == pytest.approx(target_N.var(), rel=1e-4)
    assert (batch["features"][:, -1, 4] == 0).all()
    assert batch["z"].min() >= 0.5 and batch["z"].max() < 1.5


def test_a_table_tells_the_teacher_of_its_seed() -> None:
    """So a population, which draws with one task's function and every run's table, is right."""
    other = Hyperteacher(seed=1).prepare_task(8)
    together = draw(other.train_key(1), ROWS, other.tables["train"])
    alone = next(other.train_stream(BatchShard(4, 1), None))
    # A variance of 32 numbers may be summed in another order in a larger batch.
    np.testing.assert_allclose(together["variance"][:4], alone.pop("variance"), rtol=1e-6)
    for name, values in alone.items():
        np.testing.assert_array_equal(together[name][:4], values)
    assert not np.isin(together["modules"], TASK.tables["train"]).any()
    assert not np.array_equal(module(jnp.int32(0), 8, 4), module(jnp.int32(8), 8, 4))
