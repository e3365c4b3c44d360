"""Latent codes read from a model, and what is said of codes whose answer is known."""

from itertools import combinations
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from evals import latent_code
from evals.code_samples import Choices, Collector, active_units, any_active, draw_of
from evals.code_statistics import (
    about_their_mean,
    cosine_similarity,
    dead_units,
    effective_rank,
    mean_codes,
)
from evals.decoding import decode_left_out_tasks, decode_rule, decode_terms, term_scores
from evals.fuzzy_logic import FuzzyLogic
from evals.generated import key_of
from evals.language_codes import pick
from evals.latent_figures import embed
from evals.sraven import Sraven
from evals.sraven_rules import RULES, STEPS
from hyla_lm.attention import VARIANTS, Operands, latent_codes
from hyla_lm.inspection import LayerView, attention_layers
from hyla_lm.kernels.block import Pairing, attend_block
from hyla_lm.model import Decoder
from hyla_lm.model_config import Features, ModelConfig
from hyla_lm.positions import relative_buckets

SMALL: dict[str, Any] = dict(
    num_layers=2,
    model_dim=8,
    num_heads=3,
    head_dim=2,
    mlp_dim=8,
    causal=False,
    positions="relative",
    relative_buckets=6,
    relative_max_distance=6,
    dtype="float32",
)


def small_model(task: Any, **changes: Any) -> tuple[Decoder, Any]:
    model = Decoder(ModelConfig(**{**SMALL, **changes}), task.io)
    features = jnp.zeros((1, task.sequence_length, task.io.input_size))
    params = jax.jit(model.init)(jax.random.key(3), features)["params"]
    return model, jax.tree.map(
        lambda p: p + 0.1 * jax.random.normal(jax.random.key(4), p.shape), params
    )


def test_codes_are_those_that_the_parameters_give_by_hand() -> None:
    task = FuzzyLogic(sequence_length=6).prepare_task(8)
    model, params = small_model(task)
    choices = Choices(examples=5, seed=7)
    sample = Collector(model, params, task, choices).collect("held_out", "test")

    key, table = key_of(7, "test held_out"), jnp.asarray(task.tables["held_out"])
    features = task.draw(key, jnp.arange(5), table)["features"]
    block = params["blocks"]["block_0"]
    y = features @ params["embed"]["kernel"] + params["embed"]["bias"]
    mean, variance = y.mean(-1, keepdims=True), y.var(-1, keepdims=True)
    norm = block["attention_norm"]
    y = (y - mean) / jnp.sqrt(variance + 1e-6) * norm["scale"] + norm["bias"]
    q, k = (
        jnp.einsum("btd,dhk->bthk", y, part["kernel"]) + part["bias"]
        for part in (block["attention"]["query"], block["attention"]["key"])
    )
    bucket = relative_buckets(jnp.arange(6), jnp.arange(6), 6, 6)
    bias = block["attention"]["relative_bias"][None, :, bucket]
    by_hand = latent_codes(q, k, VARIANTS["hyla"], bias=bias)[:, :, -1, -1]
    # Codes have length sqrt(3); float32 sums in another order were seen to differ by 1e-6.
    np.testing.assert_allclose(sample.code_NxBxC[0], by_hand, atol=1e-5)
    assert sample.code_NxBxC.shape == (2, 5, 3)


def test_another_purpose_draws_other_examples_of_the_same_tasks() -> None:
    task = FuzzyLogic(sequence_length=6).prepare_task(8)
    collector = Collector(*small_model(task), task, Choices(examples=200))
    one, other = (collector.collect("in_distribution", purpose) for purpose in "ab")
    assert not np.array_equal(one.labels["target"], other.labels["target"])
    known = {tuple(pair) for pair in task.tables["train"].tolist()}
    assert {tuple(pair) for pair in one.labels["terms"].tolist()} <= known


@pytest.mark.parametrize("fixed", ["nothing", "context", "query"])
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


def answer(rule: int, a: int, b: int, num_symbols: int) -> int | None:
    """What a rule makes of two symbols; None for distribute three."""
    if rule < len(STEPS):
        return (b + STEPS[rule]) % num_symbols if (a + STEPS[rule] - b) % num_symbols == 0 else -1
    return {5: (a + b) % num_symbols, 6: (a - b) % num_symbols}.get(rule)


@pytest.mark.parametrize("order", ["drawn", "identity"])
def test_the_row_of_a_sraven_query_shows_the_feature_it_asks_for(order: str) -> None:
    task = Sraven(num_features=3).prepare_task(8)
    draw = jax.jit(draw_of(task, Choices(site="row", order=order)))
    batch = jax.device_get(draw(key_of(0, "x"), jnp.arange(300), jnp.asarray(task.tables["train"])))
    symbol_BxT = batch["features"].argmax(-1)
    a_B, b_B = np.take_along_axis(symbol_BxT, batch["key_position"], 1).T
    for a, b, rule, target in zip(a_B, b_B, batch["rule"], batch["target"], strict=True):
        expected = answer(rule, a, b, 8)
        assert expected == target or (expected is None and len({a, b, target}) == 3)
    assert len(np.unique(batch["rule"])) == len(RULES)
    places = {tuple(pair) for pair in batch["key_position"].tolist()}
    assert places == {(20, 23)} if order == "identity" else len(places) == 9
    itself = jax.jit(draw_of(task, Choices(site="self", order=order)))
    keys = itself(key_of(0, "x"), jnp.arange(3), jnp.asarray(task.tables["train"]))["key_position"]
    assert keys.tolist() == [[26]] * 3


@pytest.mark.parametrize("scan", [False, True])
def test_views_of_layers_make_the_model_s_own_attention(scan: bool) -> None:
    """A pattern, scanned or not, and every layer's output made again from its view."""
    task = FuzzyLogic(sequence_length=6).prepare_task(8)
    pattern = ("hyla_deep", "softmax")
    model, params = small_model(task, num_layers=4, attention=pattern, scan_layers=scan)
    features = jax.random.uniform(jax.random.key(0), (2, 6, 5))
    of_all_positions = model.clone(io=Features(5, 1))

    @jax.jit
    def look(params: Any) -> Any:
        views = attention_layers(model, params, features)
        everything: Any = dict(capture_intermediates=True, mutable=["intermediates"])
        _, found = of_all_positions.apply({"params": params}, features, **everything)
        return [(view.code_BxHxTxS, view.operands) for view in views], found["intermediates"]

    views, found = look(params)
    for layer, (code, operands) in enumerate(views):
        name = f"block_{layer % 2 if scan else layer}"
        of_block = (params["blocks"][name], found["blocks"][name])
        own, seen = jax.tree.map(lambda x, i=layer // 2: x[i], of_block) if scan else of_block
        spec, pairing = VARIANTS[pattern[layer % 2]], Pairing(jnp.arange(6), jnp.arange(6))
        y_BxTxHxU = attend_block(operands, pairing, spec, causal=False)
        out = own["attention"]["out"]
        made = jnp.einsum("bthu,hud->btd", y_BxTxHxU, out["kernel"]) + out["bias"]
        np.testing.assert_allclose(made, seen["attention"]["__call__"][0], atol=1e-5)
        of_keys_or_heads = code.sum(3) if spec.normalizes_over_keys else jnp.square(code).mean(1)
        # RMSHead's epsilon of 1e-6 shortens codes whose scores are small.
        np.testing.assert_allclose(of_keys_or_heads, 1, atol=0.05)


def view_of(variant: str, v_BxSxHxU: np.ndarray, deep: np.ndarray | None = None) -> LayerView:
    """A layer of one head whose query agrees with every key: codes are above 0."""
    ones = jnp.ones((*v_BxSxHxU.shape[:3], 2))
    x = Operands(
        ones, ones, jnp.asarray(v_BxSxHxU), None, None if deep is None else jnp.asarray(deep)
    )
    spec = VARIANTS[variant]
    return LayerView(spec, latent_codes(ones, ones, spec), x)


def test_dead_units_are_those_that_no_pair_makes_active() -> None:
    v = np.array([[-1.0, 2.0, -3.0], [-1.0, -1.0, -0.5]]).reshape(1, 2, 1, 3)
    active = active_units(view_of("hyla", v))
    assert active is not None and active.tolist() == [False, True, False]
    assert dead_units(np.asarray(active)) == {"units": 3, "dead": 2, "share": pytest.approx(2 / 3)}

    second = np.array([[[0.0, 0, 0], [0, 0, 1], [0, 0, 0]]])
    deep = active_units(view_of("hyla_deep", v, second))
    assert deep is not None and deep.tolist() == [False, True, False, False, False, True]

    by_head = active_units(view_of("linear_rms_head_nonlinear_value", np.concatenate([v, -v], 2)))
    assert by_head is not None and by_head.tolist() == [False, True, False, True, True, True]
    assert active_units(view_of("softmax", v)) is None
    assert dead_units(None) is None
    other = np.array([True, False, False])
    assert any_active([[np.asarray(active), None], [other, None]])[0].tolist() == [
        True,
        True,
        False,
    ]  # type: ignore[union-attr]


@pytest.mark.parametrize("variant", ["softmax", "hyla", "hyla_deep"])
def test_a_contribution_is_the_length_of_what_a_key_adds(variant: str) -> None:
    key = jax.random.split(jax.random.key(0), 4)
    q, k, v = (jax.random.normal(part, (2, 5, 3, 2)) for part in key[:3])
    deep = jax.random.normal(key[3], (3, 2, 2)) if variant == "hyla_deep" else None
    x, spec = Operands(q, k, v, None, deep), VARIANTS[variant]
    view = LayerView(spec, latent_codes(q, k, spec, causal=True), x)
    pairing = Pairing(jnp.arange(5), jnp.arange(5))
    whole = attend_block(x, pairing, spec, causal=True)
    for s in range(5):
        without = attend_block(x._replace(v_BxSxHxU=v.at[:, s].set(0)), pairing, spec, causal=True)
        length_BxT = jnp.sqrt(jnp.square(whole - without).sum((2, 3)))
        np.testing.assert_allclose(view.contributions()[:, :, s], length_BxT, atol=1e-5)


def test_pick_takes_the_keys_that_add_most() -> None:
    code_BxHxTxS = jnp.arange(2 * 3 * 6 * 6.0).reshape(2, 3, 6, 6)
    added_BxTxS = jnp.tile(jnp.array([0.0, 5, 0, 7, 1, 0]), (2, 6, 1))
    own, others, position = pick(code_BxHxTxS, added_BxTxS, jnp.array([[4], [2]]))
    assert position[:, 0].tolist() == [[3, 1, 4, -1]] * 2
    np.testing.assert_array_equal(own[1, 0], code_BxHxTxS[1, :, 2, 2])
    np.testing.assert_array_equal(others[0, 0, 1], code_BxHxTxS[0, :, 4, 1])
    assert not others[:, :, 3].any()


TERMS = 6
PAIRS = np.array(list(combinations(range(TERMS), 2)))
TRAINED, LEFT_OUT = np.delete(PAIRS, [1, 6, 11], axis=0), PAIRS[[1, 6, 11]]


def codes_of_terms(pairs: np.ndarray, seed: int, noise: float) -> tuple[np.ndarray, np.ndarray]:
    """Codes, of size 8, in which each term adds a direction of its own."""
    rng = np.random.default_rng(seed)
    terms_BxK = pairs[rng.integers(len(pairs), size=1500)]
    direction_PxC = np.random.default_rng(0).normal(size=(TERMS, 8))
    return direction_PxC[terms_BxK].sum(1) + noise * rng.normal(size=(1500, 8)), terms_BxK


def test_decoding_finds_terms_on_tasks_it_was_not_fit_on() -> None:
    train = codes_of_terms(TRAINED, 1, 0.1)
    tests = {"same": codes_of_terms(TRAINED, 2, 0.1), "new": codes_of_terms(LEFT_OUT, 3, 0.1)}
    for scores in decode_terms(train, tests, range(TERMS)).values():
        assert scores["mean"]["f1"] > 0.95 and scores["mean"]["auc"] > 0.99
        assert scores["mean"]["majority_f1"] == 0
        assert set(scores["terms"]) == {str(term) for term in range(TERMS)}


def test_decoding_noise_is_chance() -> None:
    train, tests = codes_of_terms(TRAINED, 1, 1e6), {"new": codes_of_terms(LEFT_OUT, 3, 1e6)}
    scores = decode_terms(train, tests, range(TERMS))["new"]["mean"]
    # The standard error of an AUC over 1500 examples, a third positive, is 0.016; of six, 0.007.
    assert abs(scores["auc"] - 0.5) < 0.05
    assert scores["f1"] < scores["always_f1"]


def test_a_term_that_training_lacks_is_left_out() -> None:
    without = TRAINED[(TRAINED != 5).all(1)]
    tests = {"new": codes_of_terms(LEFT_OUT, 3, 0.1)}
    scores = decode_terms(codes_of_terms(without, 1, 0.1), tests, range(TERMS))["new"]
    assert set(scores["terms"]) == {"0", "1", "2", "3", "4"}


def test_tasks_that_decode_each_other() -> None:
    pairs = np.array(list(combinations(range(4), 2)))
    scores = decode_left_out_tasks(*codes_of_terms(pairs, 1, 0.1))
    assert scores is not None and scores["mean"]["f1"] > 0.95
    noise = decode_left_out_tasks(*codes_of_terms(pairs, 1, 1e6))
    assert noise is not None and noise["mean"]["f1"] < noise["mean"]["always_f1"]
    assert decode_left_out_tasks(*codes_of_terms(pairs[:1], 1, 0.1)) is None


def test_scores_of_those_that_do_not_look() -> None:
    truth, certainty = np.array([True, False, False, False]), np.array([1.0, 2, -1, -1])
    scores = term_scores(truth, certainty, majority=False)
    assert scores["f1"] == pytest.approx(2 / 3) and scores["auc"] == pytest.approx(2 / 3)
    assert scores["majority_f1"] == 0 and scores["always_f1"] == pytest.approx(0.4)
    assert term_scores(truth, certainty, majority=True)["majority_f1"] == pytest.approx(0.4)
    assert term_scores(np.zeros(4, bool), certainty, majority=False)["auc"] is None


def test_decoding_of_rules() -> None:
    rng = np.random.default_rng(0)
    direction_PxC = rng.normal(size=(8, 6))

    def codes(count: int, noise: float) -> tuple[np.ndarray, np.ndarray]:
        rule_B = rng.choice(8, size=count, p=[0.3, *[0.1] * 7])
        return direction_PxC[rule_B] + noise * rng.normal(size=(count, 6)), rule_B

    good = decode_rule(codes(1000, 0.1), {"x": codes(1000, 0.1)}, 8)["x"]
    assert good["accuracy"] > 0.97 and good["macro_f1"] > 0.97 and min(good["f1"]) > 0.9
    assert good["majority_accuracy"] == pytest.approx(0.3, abs=0.05)
    # Always rule 0: its F1 is 2 * 0.3 / 1.3, the others' 0.
    assert good["majority_macro_f1"] == pytest.approx(0.6 / 1.3 / 8, abs=0.01)
    chance = decode_rule(codes(1000, 1e6), {"x": codes(1000, 1e6)}, 8)["x"]
    assert abs(chance["accuracy"] - chance["majority_accuracy"]) < 0.05


def test_effective_rank_of_known_codes() -> None:
    axes = np.concatenate([np.eye(4), -np.eye(4)])
    assert effective_rank(axes) == pytest.approx(4)
    assert effective_rank(axes @ np.ones((4, 4))) == pytest.approx(1)
    alike = np.random.default_rng(0).normal(size=8).astype(np.float32)
    assert effective_rank(np.tile(alike, (4096, 1))) == 0
    assert effective_rank(axes + 100) == pytest.approx(4)
    uneven = np.concatenate([np.diag([3.0, 1.0]), -np.diag([3.0, 1.0])])
    entropy = -(0.75 * np.log(0.75) + 0.25 * np.log(0.25))
    assert effective_rank(uneven) == pytest.approx(np.exp(entropy))


def test_codes_that_are_all_alike_have_one_place() -> None:
    alike = np.random.default_rng(0).normal(size=8).astype(np.float32)
    assert not embed(np.tile(alike, (4096, 1)), seed=0).any()
    assert embed(np.random.default_rng(0).normal(size=(50, 4)), seed=0).std() > 0


def test_means_and_their_similarity() -> None:
    code = np.array([[1.0, 0], [3, 0], [0, 2], [-1, 0]])
    groups, means = mean_codes(code, np.array([4, 4, 2, 7]))
    assert groups.tolist() == [2, 4, 7] and means.tolist() == [[0, 2], [2, 0], [-1, 0]]
    np.testing.assert_allclose(cosine_similarity(means), [[1, 0, 0], [0, 1, -1], [0, -1, 1]])
    pairs, _ = mean_codes(code, np.array([[0, 1], [0, 1], [0, 2], [0, 1]]))
    assert pairs.tolist() == [[0, 1], [0, 2]]
    np.testing.assert_allclose(about_their_mean(means).sum(0), 0, atol=1e-12)
    assert cosine_similarity(np.zeros((2, 2))).tolist() == [[0, 0], [0, 0]]


def test_mistakes_are_told_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert latent_code.main([f"--workdir={tmp_path}"]) == 2
    assert "holds no run" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        latent_code.main([f"--workdir={tmp_path}", "--examples=0"])
    assert "0 is no number above 0" in capsys.readouterr().err
    monkeypatch.setattr("evals.latent_code.find_spec", lambda name: None)
    assert latent_code.main([f"--workdir={tmp_path}"]) == 2
    assert "pip install 'hyla_lm[evals]'" in capsys.readouterr().err
