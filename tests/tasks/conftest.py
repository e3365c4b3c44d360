"""A sampler of a random model."""

from typing import Any

import pytest

from hyla_lm.input.tokenizer import Tokenizer
from hyla_lm.model.decoder import Decoder
from hyla_lm.tasks.sampling import Sampler
from tests.tasks.random_decoder import ROW, random_decoder


@pytest.fixture(scope="session")
def softmax_decoder(tokenizer: Tokenizer) -> tuple[Decoder, Any]:
    return random_decoder(tokenizer.vocab_size, attention="softmax")


@pytest.fixture(scope="session")
def sampler(softmax_decoder: tuple[Decoder, Any], tokenizer: Tokenizer) -> Sampler:
    return Sampler(*softmax_decoder, tokenizer, ROW)
