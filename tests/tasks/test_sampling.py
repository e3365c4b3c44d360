"""Sampling: what the model sees of a text of any length, its seeds, and its end."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hyla_lm.errors import UserError
from hyla_lm.input.tokenizer import Tokenizer
from hyla_lm.model.decoder import Decoder
from hyla_lm.tasks import decoding, sampling
from hyla_lm.tasks.choice import Sampling
from hyla_lm.tasks.sampling import Sampler, generate
from tests.tasks.random_decoder import PROMPT, ROW, Reference, random_decoder

NEW = 30
MODERN = {"norm": "rms", "qk_norm": True, "gated_attention": True, "logit_soft_cap": 4.0}
GREEDY = Sampling(max_tokens=NEW, temperature=0)


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of several pieces, the last of which is not full."""
    for module in (decoding, sampling):
        monkeypatch.setattr(module, "PIECE", 4)


@pytest.mark.usefixtures("small_pieces")
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
        {"attention": ("linear", "hyla"), "num_layers": 4, "scan_layers": True},
        {"attention": "softmax", "num_kv_heads": 1, "positions": "relative", **MODERN},
        {"attention": ("linear", "hyla"), "num_layers": 2, **MODERN},
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


@pytest.mark.parametrize("size", [ROW - 1, ROW, ROW + 1, 3 * ROW])
def test_of_a_long_prompt_the_last_tokens_are_read(
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
    told = f"the prompt of {size} tokens is longer than the model's row of {ROW}: only its last"
    assert (told in caplog.text) == (size > ROW)


def test_an_empty_prompt_is_bos_alone(
    softmax_decoder: tuple[Decoder, Any], sampler: Sampler
) -> None:
    expected = Reference(*softmax_decoder).greedy([sampler.tokenizer.bos], 5)
    [actual] = sampler.sample([""], replace(GREEDY, max_tokens=5))
    assert actual.tokens == expected and actual.text == sampler.tokenizer.decode(expected)


@pytest.mark.parametrize("narrowed", [{"top_k": 1}, {"top_p": 1e-6}], ids=str)
def test_a_choice_of_one_is_greedy(sampler: Sampler, narrowed: dict[str, Any]) -> None:
    one = Sampling(max_tokens=NEW, temperature=2.0, seed=5, **narrowed)
    assert sampler.sample([PROMPT], one) == sampler.sample([PROMPT], GREEDY)


def test_the_text_depends_on_the_seed_alone(sampler: Sampler) -> None:
    texts = [sampler.sample([PROMPT], Sampling(NEW, 1.0, seed=seed))[0].text for seed in (0, 0, 1)]
    assert texts[0] == texts[1] != texts[2]


def test_every_token_is_drawn_anew(
    softmax_decoder: tuple[Decoder, Any], tokenizer: Tokenizer
) -> None:
    model, params = softmax_decoder
    indifferent = jax.tree.map(jnp.zeros_like, params)
    text = generate(model, indifferent, tokenizer, PROMPT, Sampling(NEW, 1.0), ROW)
    assert len(set(tokenizer.encode(text))) > NEW // 2


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
    assert "".join(early.stream(PROMPT, GREEDY)) == ended.text


def test_a_model_that_sees_what_follows_cannot_be_sampled(tokenizer: Tokenizer) -> None:
    model, params = random_decoder(tokenizer.vocab_size, attention="softmax", causal=False)
    with pytest.raises(UserError, match="ModelConfig.causal"):
        Sampler(model, params, tokenizer, ROW)
