"""Sampling: greedy decoding against full forward passes, allowed tokens, and the end."""

from collections import Counter
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hyla_lm.config import UserError
from hyla_lm.input.prepared import Rows
from hyla_lm.input.tokenizer import Tokenizer
from hyla_lm.model.config import ModelConfig, Tokens
from hyla_lm.model.decoder import Decoder
from hyla_lm.parallel.mesh import path_of
from hyla_lm.tasks.choice import Sampling, choose
from hyla_lm.tasks.sampling import generate

CONTEXT, NEW = 24, 12
GREEDY = Sampling(max_tokens=NEW, temperature=0)
PROMPT = "bast ten ba"


def random_decoder(vocab_size: int, **fields: Any) -> tuple[Decoder, Any]:
    """A tiny model whose kernels and tables are random and large enough for a token to matter."""
    sizes = dict(model_dim=16, num_heads=2, head_dim=8, mlp_dim=16, dtype="float32")
    free = dict(num_layers=1, tie_embeddings=False)
    model = Decoder(ModelConfig(**{**sizes, **free, **fields}), Tokens(vocab_size))
    shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 4), jnp.int32))["params"]
    # With this seed the two likeliest logits below are never closer than 0.02.
    rng = np.random.default_rng(4)

    def draw(path: Any, shape: jax.ShapeDtypeStruct) -> jax.Array:
        if path_of(path).endswith("scale"):
            return jnp.ones(shape.shape)
        small = path_of(path).endswith("/bias")
        return jnp.float32(rng.normal(size=shape.shape) * (0.1 if small else 0.5))

    return model, jax.tree_util.tree_map_with_path(draw, shapes)


@pytest.fixture(scope="module")
def tiny_tokenizer(tiny_rows: Rows) -> Tokenizer:
    return Tokenizer(tiny_rows.tokenizer)


@pytest.fixture(scope="module")
def softmax_decoder(tiny_tokenizer: Tokenizer) -> tuple[Decoder, Any]:
    return random_decoder(tiny_tokenizer.vocab_size, attention="softmax")


def greedy_ids(model: Decoder, params: Any, prompt: list[int]) -> list[int]:
    """The likeliest next token of a full forward pass, again and again."""
    forward = jax.jit(lambda tokens: model.apply({"params": params}, tokens))
    row = np.zeros((1, len(prompt) + NEW), np.int32)
    row[0, : len(prompt)] = prompt
    for end in range(len(prompt), row.size):
        row[0, end] = int(jnp.argmax(forward(row)[0, end - 1]))
    return row[0, len(prompt) :].tolist()


def greedy_text(model: Decoder, params: Any, tokenizer: Tokenizer) -> str:
    prompt = tokenizer.encode(PROMPT)
    new = greedy_ids(model, params, [tokenizer.bos, *prompt])
    assert len(set(new)) >= NEW // 2, "the model says too little to tell right from wrong"
    assert tokenizer.eos not in new
    return tokenizer.decode(prompt + new)[len(tokenizer.decode(prompt)) :]


@pytest.mark.parametrize(
    "fields",
    [
        {"attention": "softmax", "positions": "rotary"},
        {"attention": "softmax", "positions": "relative"},
        {"attention": "linear", "positions": "rotary"},
        {"attention": "linear", "positions": "relative"},
        {"attention": "hyla", "positions": "rotary"},
        {"attention": "hyla", "positions": "relative"},
        {"attention": ("hyla", "softmax"), "num_layers": 2, "positions": "learned"},
    ],
    ids=lambda fields: f"{fields['attention']}-{fields['positions']}",
)
def test_temperature_0_takes_the_likeliest_of_full_forward_passes(
    tiny_tokenizer: Tokenizer, fields: dict[str, Any]
) -> None:
    model, params = random_decoder(tiny_tokenizer.vocab_size, max_length=CONTEXT, **fields)
    actual = generate(model, params, tiny_tokenizer, PROMPT, GREEDY, CONTEXT)
    assert actual == greedy_text(model, params, tiny_tokenizer)


@pytest.mark.parametrize("narrowed", [{"top_k": 1}, {"top_p": 1e-6}], ids=str)
def test_a_choice_of_one_is_greedy(
    softmax_decoder: tuple[Decoder, Any], tiny_tokenizer: Tokenizer, narrowed: dict[str, Any]
) -> None:
    model, params = softmax_decoder
    sampling = Sampling(max_tokens=NEW, temperature=2.0, seed=5, **narrowed)
    actual = generate(model, params, tiny_tokenizer, PROMPT, sampling, CONTEXT)
    assert actual == generate(model, params, tiny_tokenizer, PROMPT, GREEDY, CONTEXT)


def test_the_text_depends_on_the_seed_alone(
    softmax_decoder: tuple[Decoder, Any], tiny_tokenizer: Tokenizer
) -> None:
    model, params = softmax_decoder
    texts = [
        generate(model, params, tiny_tokenizer, PROMPT, Sampling(NEW, 1.0, seed=seed), CONTEXT)
        for seed in (0, 0, 1)
    ]
    assert texts[0] == texts[1] != texts[2]


def test_every_token_is_drawn_anew(
    softmax_decoder: tuple[Decoder, Any], tiny_tokenizer: Tokenizer
) -> None:
    model, params = softmax_decoder
    indifferent = jax.tree.map(jnp.zeros_like, params)
    text = generate(model, indifferent, tiny_tokenizer, PROMPT, Sampling(NEW, 1.0), CONTEXT)
    assert len(set(tiny_tokenizer.encode(text))) > NEW // 2


def test_the_continuation_ends_before_eos(
    softmax_decoder: tuple[Decoder, Any], tiny_tokenizer: Tokenizer
) -> None:
    model, params = softmax_decoder
    prompt = tiny_tokenizer.encode(PROMPT)
    new = greedy_ids(model, params, [tiny_tokenizer.bos, *prompt])
    stop = next(i for i in range(4, NEW) if new[i] not in new[:i])

    class EndsEarly(Tokenizer):
        eos = new[stop]

    early = EndsEarly(tiny_tokenizer.path)
    whole = tiny_tokenizer.decode(prompt + new[:stop])
    expected = whole[len(tiny_tokenizer.decode(prompt)) :]
    assert generate(model, params, early, PROMPT, GREEDY, CONTEXT) == expected


def test_prompt_and_continuation_may_fill_the_context(
    softmax_decoder: tuple[Decoder, Any], tiny_tokenizer: Tokenizer
) -> None:
    model, params = softmax_decoder
    used = 1 + len(tiny_tokenizer.encode(PROMPT)) + NEW - 1  # The last token is not fed back.
    actual = generate(model, params, tiny_tokenizer, PROMPT, GREEDY, used)
    assert actual == greedy_text(model, params, tiny_tokenizer)
    with pytest.raises(UserError, match=f"--max_tokens={NEW} exceed the context of {used - 1}"):
        generate(model, params, tiny_tokenizer, PROMPT, GREEDY, used - 1)


VOCABULARY, DRAWS = 12, 4000
# Shuffled, so that no order of ids is the order of their probabilities.
LOGITS = np.random.default_rng(0).permutation(np.linspace(0, 4, VOCABULARY)).astype(np.float32)


def drawn(sampling: Sampling) -> Counter[int]:
    keys = jax.random.split(jax.random.key(0), DRAWS)
    draw = jax.jit(jax.vmap(partial(choose, jnp.asarray(LOGITS), sampling=sampling)))
    return Counter(np.asarray(draw(keys)).tolist())


def probabilities(temperature: float) -> np.ndarray:
    weights = np.exp(LOGITS.astype(np.float64) / temperature)
    return weights / weights.sum()


def nucleus(temperature: float, top_p: float) -> set[int]:
    """The fewest likeliest tokens whose probabilities reach top_p."""
    order = np.argsort(-LOGITS)
    reached = np.cumsum(probabilities(temperature)[order])
    return set(order[: int(np.argmax(reached >= top_p)) + 1].tolist())


@pytest.mark.parametrize("top_k", [1, 2, 5, VOCABULARY, 100])
def test_only_the_top_k_are_chosen_and_each_of_them_is(top_k: int) -> None:
    likeliest = np.argsort(-LOGITS)[:top_k].tolist()
    # At temperature 2 the rarest has probability 0.02: it is missing in 4000 with odds e^-80.
    assert set(drawn(Sampling(temperature=2.0, top_k=top_k))) == set(likeliest)


@pytest.mark.parametrize("temperature", [1.0, 2.0])
@pytest.mark.parametrize("top_p", [0.1, 0.5, 0.9])
def test_only_the_nucleus_is_chosen_and_all_of_it_is(top_p: float, temperature: float) -> None:
    sampling = Sampling(temperature=temperature, top_p=top_p)
    assert set(drawn(sampling)) == nucleus(temperature, top_p)


def test_top_k_and_top_p_narrow_together() -> None:
    wide = nucleus(2.0, 0.9)
    assert len(wide) > 3
    assert len(drawn(Sampling(temperature=2.0, top_k=3, top_p=0.9))) == 3
    assert set(drawn(Sampling(temperature=2.0, top_k=11, top_p=0.9))) == wide


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_frequencies_are_the_softmax_at_the_temperature(temperature: float) -> None:
    counts = drawn(Sampling(temperature=temperature))
    expected = probabilities(temperature)
    frequencies = np.array([counts[token] for token in range(VOCABULARY)]) / DRAWS
    # Five standard deviations of a frequency out of 4000 draws.
    deviation = np.sqrt(expected * (1 - expected) / DRAWS)
    assert (np.abs(frequencies - expected) < 5 * deviation + 1 / DRAWS).all()


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": 0},
        {"temperature": -0.1},
        {"top_k": -1},
        {"top_p": 0.0},
        {"top_p": 1.5},
        {"temperature": float("nan")},
        {"top_p": float("nan")},
    ],
    ids=str,
)
def test_unfit_sampling_names_the_flag(fields: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"--{next(iter(fields))}"):
        Sampling(**fields)
