"""Match3: labels by their definition, inputs and metrics."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hyla_lm.evals.tasks.match3 import Match3, angles
from hyla_lm.metrics import means, to_host

TASK = Match3().prepare_task(8)
draw = jax.jit(TASK.draw)


def triples_in(residues: list[int], modulus: int) -> set[tuple[int, ...]]:
    """The multisets of three of the integers, one more than once perhaps, that sum to 0."""
    found = product(residues, repeat=3)
    return {tuple(sorted(abc)) for abc in found if sum(abc) % modulus == 0}


@pytest.mark.parametrize("name", ["train", "held_out"])
def test_labels_are_by_definition_and_triples_of_the_sets_table(name: str) -> None:
    """By brute force."""
    batch = jax.device_get(draw(TASK.train_key(0), jnp.arange(300), TASK.tables[name]))
    allowed = {tuple(triple) for triple in TASK.tables[name].tolist()}
    for residues, target in zip(batch["residue"].tolist(), batch["target"].tolist(), strict=True):
        [triple] = triples_in(residues, TASK.config.modulus)
        assert triple in allowed and len(set(residues)) == 6
        assert target == [x in triple for x in residues] and sum(target) == 3


def test_an_integer_is_shown_as_turns_round_the_circle() -> None:
    shown = angles(jnp.array([0, 1, 3]), 4, 2)
    # cos and sin of a quarter, and of twice that; float32 pi is right to 1e-7.
    np.testing.assert_allclose(shown, [[1, 1, 0, 0], [0, -1, 1, 0], [0, -1, -1, 0]], atol=1e-6)


def test_metrics_score_labels_and_sequences_and_leave_filled_rows_out() -> None:
    target = jnp.array([[1, 1, 1, 0, 0, 0]] * 3, bool)
    right = jnp.where(target, 2.0, -2.0)
    logits = right.at[1, 0].set(-2.0).at[2].set(-right[2])[..., None]
    weight = jnp.array([1.0, 1.0, 0.0])
    objective, metrics = TASK.score(logits, {"target": target}, weight)
    values = means(to_host(metrics))
    assert values["accuracy"] == pytest.approx(11 / 12) and values["sequence_accuracy"] == 0.5
    # float32 logarithms near 1 are right to 1e-7.
    expected = (11 * np.log1p(np.exp(-2)) + np.log1p(np.exp(2))) / 12
    assert values["loss_nats"] == pytest.approx(expected, rel=1e-5)
    assert objective == metrics["loss_nats"]
