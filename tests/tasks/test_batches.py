"""Many texts at once: each is what it is alone, and other prompts compile nothing anew."""

import jax
import pytest

from hyla_lm.tasks import sampling as module
from hyla_lm.tasks.choice import Sampling
from hyla_lm.tasks.sampling import Sampler

# Lengths below, at and beyond the row of 11 tokens, so that windows are full at different times.
PROMPTS = ["ba", "bast ten ba mu", "", "kan bu dest ta mun " * 5]
SAMPLING = Sampling(max_tokens=25, temperature=0.8, seed=3)


def test_a_text_is_the_same_to_the_bit_with_others_beside_it(sampler: Sampler) -> None:
    together = sampler.sample(PROMPTS, SAMPLING)
    others = ["du" * 7, PROMPTS[1], "ki", "bon"]
    assert sampler.sample(others, SAMPLING)[1] == together[1]


def test_a_text_alone_is_that_of_its_number_in_a_batch(
    sampler: Sampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch may add in another order, which changes no token here."""
    together = [sample.tokens for sample in sampler.sample(PROMPTS, SAMPLING)]
    monkeypatch.setattr(module, "ROWS_AT_ONCE", 1)
    alone = sampler.sample(PROMPTS, SAMPLING)
    assert [sample.tokens for sample in alone] == together
    for number, sample in enumerate(alone):
        assert "".join(sampler.stream(sample.prompt, SAMPLING, number)) == sample.text


def test_samples_of_a_prompt_differ_and_stand_together(sampler: Sampler) -> None:
    found = sampler.sample(["ba", "ki"], SAMPLING, samples=2)
    assert [sample.prompt for sample in found] == ["ba", "ba", "ki", "ki"]
    assert len({tuple(sample.tokens) for sample in found}) == 4


def test_another_prompt_length_and_seed_compile_nothing_anew(
    sampler: Sampler, caplog: pytest.LogCaptureFixture
) -> None:
    with jax.log_compiles():
        list(sampler.stream("kan", Sampling(max_tokens=25, temperature=0.77)))
        assert "Compiling" in caplog.text, "this temperature is new"
        caplog.clear()
        for prompt in PROMPTS:
            list(sampler.stream(prompt, Sampling(31, temperature=0.77, seed=7), number=5))
    assert "Compiling" not in caplog.text
