"""What is fixed among the examples of latent codes, and their labels."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hyla_lm.evals.latent_codes.samples import Choices, draw_of
from hyla_lm.evals.tasks.fuzzy_logic import FuzzyLogic
from hyla_lm.evals.tasks.generated import key_of
from hyla_lm.evals.tasks.sraven import Sraven
from hyla_lm.evals.tasks.sraven_rules import RULES, completions


@pytest.mark.parametrize("fixed", ["context", "query"])
def test_what_is_fixed_in_fuzzy_logic(fixed: str) -> None:
    task = FuzzyLogic(sequence_length=6).prepare_task(8)
    draw = jax.jit(draw_of(task, Choices(fixed=fixed)))
    batch = draw(key_of(0, "x"), jnp.arange(50), jnp.asarray(task.tables["held_out"]))
    x_BxNxL = np.asarray(batch["features"])[..., :-1]
    context, query = x_BxNxL[:, :-1], x_BxNxL[:, -1]
    assert (context == context[0]).all() == (fixed == "context")
    assert (query == query[0]).all() == (fixed == "query")
    assert len(np.unique(batch["terms"], axis=0)) > 20
    assert fixed == "query" or len(np.unique(batch["target"])) > 10
    assert (np.asarray(batch["features"])[:, -1, -1] == 0).all()


def test_the_rule_of_a_sraven_query_is_that_of_the_feature_it_asks_for() -> None:
    task = Sraven(num_features=2).prepare_task(8)
    draw = jax.jit(draw_of(task, Choices()))
    batch = jax.device_get(draw(key_of(0, "x"), jnp.arange(300), jnp.asarray(task.tables["train"])))
    panel_BxRxCxM = batch["features"].argmax(-1).reshape(300, 3, 3, 2)
    a_R, b_R, c_R = (jnp.asarray(panel_BxRxCxM[:, :, column].swapaxes(0, 1)) for column in range(3))
    found = np.zeros(300, bool)
    for first, second in np.ndindex(2, 2):  # the places of the feature in the other columns
        columns = a_R[:, :, first], b_R[:, :, second], c_R[:, :, -1]
        fits, answer = jax.jit(completions, static_argnums=3)(*columns, 8)
        place = (batch["rule"], np.arange(300))
        found |= np.asarray(fits[place] & (answer[place] == batch["target"]))
    assert found.all()
    assert len(np.unique(batch["rule"])) == len(RULES)
