"""Sampling: what the model sees of a text of any length, seeds, batches."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hyla_lm.input.tokenizer import Tokenizer
from hyla_lm.model.decoder import Decoder
from hyla_lm.tasks import decoding, sampling
from hyla_lm.tasks.sampling import Sampler, Sampling
from tests.tasks.random_decoder import PROMPT, ROW, Reference, random_decoder

NEW = 30
MODERN = {"norm": "rms", "qk_norm": True, "gated_attention": True, "logit_soft_cap": 4.0}
GREEDY = Sampling(max_tokens=NEW, temperature=0)
# Lengths below, at and beyond the row of 11 tokens, so that windows are full at different times.
PROMPTS = ["ba", "bast ten ba mu", "", "kan bu dest ta mun " * 5]
SAMPLING = Sampling(max_tokens=25, temperature=0.8, seed=3)


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of several pieces, the last of which is not full."""
    for module in (decoding, sampling):
        monkeypatch.setattr(module, "PIECE", 4)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize(
    "fields",
    [
        {"attention": "linear", "positions": "rotary"},
        {"attention": "hyla", "positions": "relative"},
        {"attention": ("hyla", "softmax"), "num_layers": 2, "positions": "learned"},
        {"attention": ("linear", "hyla"), "num_layers": 4, "scan_layers": True},
        {"attention": "softmax", "num_kv_heads": 1, "positions": "relative", **MODERN},
        {"attention": ("linear", "hyla"), "num_layers": 2, "feedforward": "moe", **MODERN},
    ],
    ids=lambda fields: f"{fields['attention']}-{fields.get('positions', 'scanned')}-{len(fields)}",
)
def test_tokens_and_their_probabilities_are_those_of_full_forward_passes_over_the_window(
    tokenizer: Tokenizer, fields: dict[str, Any]
) -> None:
    """Through several windows of 11 tokens; sums in float32, in another order."""
    model, params = random_decoder(tokenizer.vocab_size, **fields)
    reference = Reference(model, params)
    prompt = [tokenizer.bos, *tokenizer.encode(PROMPT)]
    expected = reference.greedy(prompt, NEW)
    assert len(set(expected)) >= NEW // 3, "the model says too little to tell right from wrong"
    [actual] = Sampler(model, params, tokenizer, ROW).sample([PROMPT], GREEDY)
    assert actual.tokens == expected and not actual.ended
    nats = reference.nats(prompt + expected)[-NEW:]
    np.testing.assert_allclose(actual.log_probability, -sum(nats), rtol=1e-4)


@pytest.mark.parametrize("size", [1, 3 * ROW])
def test_of_a_long_prompt_the_last_tokens_are_read_and_an_empty_one_is_bos(
    softmax_decoder: tuple[Decoder, Any],
    sampler: Sampler,
    size: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    tokenizer = sampler.tokenizer
    ids = [tokenizer.bos, *tokenizer.encode(PROMPT * 9)][:size]
    prompt = tokenizer.decode(ids[1:])
    assert [tokenizer.bos, *tokenizer.encode(prompt)] == ids
    expected = Reference(*softmax_decoder).greedy(ids, 3)
    [actual] = sampler.sample([prompt], replace(GREEDY, max_tokens=3))
    assert actual.tokens == expected
    warning = f"the prompt of {size} tokens is longer than the model's row of {ROW}: only its last"
    assert (warning in caplog.text) == (size > ROW)


def test_every_token_is_drawn_anew_by_the_seed_alone(
    softmax_decoder: tuple[Decoder, Any], tokenizer: Tokenizer
) -> None:
    model, params = softmax_decoder
    indifferent = Sampler(model, jax.tree.map(jnp.zeros_like, params), tokenizer, ROW)
    drawn = [
        indifferent.sample([PROMPT], Sampling(NEW, 1.0, seed=seed))[0].tokens for seed in (0, 0, 1)
    ]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(set(drawn[0])) > NEW // 2


def test_the_continuation_ends_before_eos(
    softmax_decoder: tuple[Decoder, Any], sampler: Sampler, tokenizer: Tokenizer
) -> None:
    new = sampler.sample([PROMPT], GREEDY)[0].tokens
    stop = next(i for i in range(4, NEW) if new[i] not in new[:i])

    class EndsEarly(Tokenizer):
        eos = new[stop]

    early = Sampler(*softmax_decoder, EndsEarly(tokenizer.path), ROW)
    prompt = tokenizer.encode(PROMPT)
    whole = tokenizer.decode(prompt + new[:stop])
    [ended] = early.sample([PROMPT], GREEDY)
    assert ended.text == whole[len(tokenizer.decode(prompt)) :]
    assert ended.tokens == new[: stop + 1] and ended.ended


def test_a_text_alone_is_that_of_its_number_in_a_batch(
    sampler: Sampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch may add in another order, which changes no token here."""
    together = [sample.tokens for sample in sampler.sample(PROMPTS, SAMPLING)]
    monkeypatch.setattr(sampling, "ROWS_AT_ONCE", 1)
    alone = sampler.sample(PROMPTS, SAMPLING)
    assert [sample.tokens for sample in alone] == together
