"""A loss on latent codes is added to that of a task, on every mesh, and is off by default."""

import json
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hyla_lm.config.read_experiment import read_experiment
from hyla_lm.errors import UserError
from hyla_lm.evals.populations.population import Population
from hyla_lm.evals.tasks.fuzzy_logic import FuzzyLogic
from hyla_lm.evals.tasks.sraven import Sraven
from hyla_lm.model.decoder import Decoder
from hyla_lm.model.inspection import (
    LayerView,
    attention_layers,
    contrast,
    entropy_over_heads,
    moments,
)
from hyla_lm.run import program as program_module
from hyla_lm.run.program import Program, abstract_batch, identity, lower_step, make_program
from hyla_lm.tasks.code_loss import METRIC, CodeLoss, with_code_loss
from hyla_lm.tasks.language_model import NextToken
from hyla_lm.tasks.protocol import LossFn, Task
from tests.model.small_model import QUICK_COMPILE, VOCABULARY, parameters, small
from tests.scripts import output_of

# Of settings of fuzzy logic that make it small.
FUZZY = (
    "gin/evals/fuzzy_logic_strict.gin",
    [
        *("TrainConfig.batch_size = 16", "SEQUENCE_LENGTH = 4", "ModelConfig.num_layers = 1"),
        *("ModelConfig.model_dim = 8", "ModelConfig.num_heads = 2", "ModelConfig.mlp_dim = 8"),
    ],
)
CONTRASTIVE = ["TrainConfig.code_loss = @CodeLoss()", 'CodeLoss.kind = "contrastive"']
TEXT = NextToken(VOCABULARY, 1, 11, 5, 0.0)


def text_batch() -> dict[str, jax.Array]:
    ids = np.random.default_rng(0).integers(2, VOCABULARY, size=(3, 12))
    ids[:, 0], ids[0, 5], ids[2, 8] = 1, 1, 1  # BOS: documents of odd lengths
    return {"tokens": jnp.asarray(ids), "text_bytes": jnp.ones(3), "row": jnp.arange(3)}


def both(ours: LossFn, want: LossFn, params: Any, batch: Any) -> tuple[Any, Any]:
    """(((sum, count), metrics), gradient of the sum) of both losses, compiled together."""

    def of(loss: LossFn, params: Any) -> Any:
        def total(params: Any) -> Any:
            found = loss(params, batch, None)
            return found[0][0], found

        (_, found), grads = jax.value_and_grad(total, has_aux=True)(params)
        return found, grads

    found = jax.jit(lambda p: (of(ours, p), of(want, p)), compiler_options=QUICK_COMPILE)(params)
    return found[0], found[1]


def check_equal(ours: Any, want: Any) -> None:
    """To float32 sums in another order: entries of a gradient cancel, so of its largest."""

    def check(a: jax.Array, b: jax.Array) -> None:
        np.testing.assert_allclose(a, b, rtol=0, atol=2e-5 * float(np.abs(b).max()) + 1e-7)

    jax.tree.map(check, ours, want)


def defined(objective: Any, weight: float, term: Callable[[LayerView, Any], Any]) -> Any:
    """The code loss by its definition, from a second run of the model."""

    def of_model(model: Decoder) -> LossFn:
        def loss_fn(params: Any, batch: Any, _: None) -> tuple[Any, Any]:
            (total, count), metrics = objective.loss(model)(params, batch, None)
            layers = attention_layers(model, params, *objective.inputs(batch))
            pairs = [term(layer, batch) for layer in layers]
            code = count * sum(s / n for s, n in pairs) / len(pairs)
            return (total + weight * code, count), {**metrics, METRIC: (code, count)}

        return loss_fn

    return of_model


class Hidden:
    """The objective of a language model without its head, which is slow to compile."""

    io = TEXT.io

    def inputs(self, batch: Any) -> Any:
        return TEXT.inputs(batch)

    def loss(self, model: Decoder) -> LossFn:
        def loss_fn(params: Any, batch: Any, _: Any) -> Any:
            hidden: Any = model.apply({"params": params}, *self.inputs(batch), method="hidden")
            return (jnp.sum(hidden[..., 0]), jnp.float32(hidden[..., 0].size)), {}

        return loss_fn


def test_layers_in_a_scan_that_are_computed_again_give_theirs() -> None:
    """The mean over layers, with its gradients, of documents."""
    task: Any = Hidden()
    model, batch = Decoder(small(scan_layers=True, remat=True), TEXT.io), text_batch()
    params = parameters(model, batch["tokens"])
    by_hand = defined(task, 3.0, lambda layer, _: entropy_over_heads(layer.request))(model)
    check_equal(
        *both(with_code_loss(CodeLoss("entropy", 3.0), task, model), by_hand, params, batch)
    )


def test_fuzzy_logic_adds_it_for_the_layers_that_are_named() -> None:
    """Of the last query, which alone answers, though all ask in this layer."""
    task = FuzzyLogic(sequence_length=5).prepare_task(8)
    model = Decoder(small(attention=("linear", "hyla"), causal=False), task.io)
    batch: Any = task.draw(task.train_key(0), jnp.arange(8), jnp.asarray([[0, 1], [2, 3]]))
    params = parameters(model, batch["features"])

    def term(layer: LayerView, batch: Any) -> Any:
        if layer.request.spec.value_network == "hypernetwork":
            return 0.0, 1.0
        return contrast(moments(layer.request, 1), batch["terms"], 0.5)

    config = CodeLoss("contrastive", 1.0, temperature=0.5, layers=(0,))
    by_hand = defined(task, 2.0, term)(model)  # it divides by two layers
    ours, want = both(with_code_loss(config, task, model), by_hand, params, batch)
    check_equal(ours[1], want[1])
    np.testing.assert_allclose(ours[0][1][METRIC][0], 2 * want[0][1][METRIC][0], rtol=1e-5)
    assert ours[0][1][METRIC][1] == 8


def test_generated_tasks_know_their_functions() -> None:
    """The terms or rules of an example, in order, so that equal rows are equal functions."""
    for config, name, size in ((FuzzyLogic(), "terms", 2), (Sraven(), "rules", 4)):
        task: Any = config.prepare_task(8)
        batch = task.batch_shapes(8)
        assert task.functions(batch) is batch[name]
        assert batch[name].shape == (8, size)
        rows = [tuple(row) for row in task.tables["train"].tolist()]
        assert all(list(row) == sorted(row) for row in rows) and len(set(rows)) == len(rows)


def test_without_it_the_step_and_what_names_a_run_are_those_of_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_it, without = (
        make_program(read_experiment([FUZZY[0]], [*FUZZY[1], *more])) for more in (CONTRASTIVE, [])
    )

    def text(program: Any) -> str:
        with jax.set_mesh(program.mesh):
            return lower_step(program).as_text()

    ours, other = text(without), text(with_it)
    monkeypatch.setattr(program_module, "with_code_loss", lambda _, task, model: task.loss(model))
    assert ours == text(make_program(without.experiment)) != other
    assert identity(without) == identity(with_it)
    with jax.set_mesh(with_it.mesh):
        batch = abstract_batch(with_it)
        metrics = jax.eval_shape(with_it.evaluation_step, with_it.abstract_state.params, batch)
    assert "mse" in metrics and METRIC not in metrics, "validation is the task's alone"
    assert jax.tree.structure(without.abstract_state) == jax.tree.structure(with_it.abstract_state)
    assert "code_loss" not in without.experiment.text.lower()  # config.gin, to the byte


def test_runs_that_train_together_have_it() -> None:
    """All the same one: each of another weight is refused."""

    def programs(*more: str) -> list[Program[Task]]:
        bindings = [[*FUZZY[1], *CONTRASTIVE, f"CodeLoss.weight = {weight}"] for weight in more]
        return [make_program(read_experiment([FUZZY[0]], b), jax.devices()[:1]) for b in bindings]

    population = Population(programs("1.0", "1.0"))
    with jax.set_mesh(population.program.mesh):
        state, batch = jax.eval_shape(population.init), {"row": jnp.arange(32).reshape(2, 16)}
        _, output = jax.eval_shape(population.train_step, state, batch)
    assert output.metrics[METRIC][0].shape == (2, 2)
    with pytest.raises(UserError, match=r"differ in TrainConfig\.code_loss"):
        Population(programs("1.0", "2.0"))


def test_rows_of_all_devices_count_as_those_of_one() -> None:
    """Means are over the pairs of all, and examples of all are contrasted, with their gradients."""
    alone, divided = json.loads(output_of("tests.tasks.code_loss_meshes", devices=4))
    check_equal(divided, alone)
    assert np.abs(alone["gradients"]).max() > 0.1


def refused(config: Callable[[], CodeLoss], attention: str = "hyla") -> str:
    model, batch = Decoder(small(attention=attention), TEXT.io), text_batch()
    with pytest.raises(UserError) as error:
        loss = with_code_loss(config(), TEXT, model)
        jax.eval_shape(loss, parameters(model, batch["tokens"]), batch, None)
    assert str(error.value).count(". ") == 0, "one sentence"
    return str(error.value)


def test_what_cannot_have_it_is_told_what_to_change() -> None:
    told = refused(lambda: CodeLoss("contrastive"))
    assert "NextToken has no `functions`: take 'l2' or 'entropy'" in told
    told = refused(CodeLoss, "hyla_gated")
    assert "'hyla_gated' in ModelConfig.attention has two: take another variant" in told
    assert "layers 0 to 1" in refused(lambda: CodeLoss(layers=(0, 2)))
