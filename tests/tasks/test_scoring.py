"""Scores: the task's own loss, every token once, in the windows that sampling sees."""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hyla_lm.errors import UserError
from hyla_lm.input.tokenizer import Tokenizer
from hyla_lm.model.decoder import Decoder
from hyla_lm.tasks import scoring
from hyla_lm.tasks.decoding import Sampling, window_size, window_starts
from hyla_lm.tasks.language_model import NextToken
from hyla_lm.tasks.sampling import Sampler
from hyla_lm.tasks.scoring import Score, score, score_ids
from tests.tasks.random_decoder import PROMPT, ROW, Reference, random_decoder

# float32 sums in another order.
TOLERANCE = 1e-5


def test_a_text_that_fits_a_row_has_the_loss_of_its_row(
    softmax_decoder: tuple[Decoder, Any], sampler: Sampler
) -> None:
    model, params = softmax_decoder
    tokenizer = sampler.tokenizer
    found = score(model, params, tokenizer, PROMPT, ROW)
    assert len(found.tokens) < ROW and found.tokens == tokenizer.encode(PROMPT)
    padding = [tokenizer.bos] * (ROW - len(found.tokens))
    batch = {
        "tokens": jnp.asarray([[tokenizer.bos, *found.tokens, *padding]]),
        "text_bytes": jnp.asarray([len(PROMPT)]),
        "row": jnp.zeros(1, jnp.int32),
    }
    loss = NextToken(tokenizer.vocab_size, tokenizer.bos, ROW, logit_chunk=4, z_loss=0.0).loss(
        model
    )
    _, metrics = jax.jit(partial(loss, dropout_key=None))(params, batch)
    nats, count = metrics["loss_nats"]
    assert count == len(found.tokens)
    np.testing.assert_allclose(found.nats, nats, rtol=TOLERANCE)
    bits, text_bytes = metrics["bits_per_byte"]
    np.testing.assert_allclose(found.bits_per_byte, bits / text_bytes, rtol=TOLERANCE)


@pytest.mark.parametrize("size", [2, ROW + 1, 50])
def test_every_token_is_scored_once_in_its_window(
    softmax_decoder: tuple[Decoder, Any], monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(scoring, "WINDOWS_AT_ONCE", 4)
    ids = np.random.default_rng(size).integers(3, 300, size=size).tolist()
    actual = score_ids(*softmax_decoder, ids, ROW)
    np.testing.assert_allclose(actual, Reference(*softmax_decoder).nats(ids), rtol=1e-4)


def test_the_score_of_a_sample_is_the_probability_it_was_sampled_with(
    softmax_decoder: tuple[Decoder, Any], sampler: Sampler
) -> None:
    [sample] = sampler.sample([PROMPT], Sampling(max_tokens=40, temperature=0.8))
    prompt = [sampler.tokenizer.bos, *sampler.tokenizer.encode(PROMPT)]
    nats = score_ids(*softmax_decoder, prompt + sample.tokens, ROW)
    np.testing.assert_allclose(
        sample.log_probability, -sum(nats[-len(sample.tokens) :]), rtol=TOLERANCE
    )


@pytest.mark.parametrize("row", [1, 2, 11])
def test_windows_hold_half_a_row_to_a_row_and_predict_each_token_once(row: int) -> None:
    for total in range(2, 5 * row + 3):
        reached = 0
        for start in window_starts(total, row):
            end = min(start + row, total - 1)
            contexts = [place - start for place in range(reached + 1, end + 1)]
            assert contexts == [window_size(place, row) for place in range(reached + 1, end + 1)]
            assert contexts and (start == 0 or 2 * contexts[0] >= row)
            reached = end
        assert reached == total - 1


def test_what_cannot_be_scored_or_sampled_is_refused(
    softmax_decoder: tuple[Decoder, Any], tokenizer: Tokenizer
) -> None:
    with pytest.raises(UserError, match="no tokens"):
        score(*softmax_decoder, tokenizer, "", ROW)
    model, params = random_decoder(tokenizer.vocab_size, attention="softmax", causal=False)
    with pytest.raises(UserError, match="only a causal model can score"):
        score(model, params, tokenizer, PROMPT, ROW)
    with pytest.raises(UserError, match="only a causal model can be sampled"):
        Sampler(model, params, tokenizer, ROW)


def test_bits_per_byte_are_by_bytes_of_utf_8() -> None:
    assert Score("äö", [5], ["äö"], [2 * math.log(2)]).bits_per_byte == pytest.approx(0.5)
