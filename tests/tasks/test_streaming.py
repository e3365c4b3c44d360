"""Text that comes in pieces: never half a character, and together the whole."""

import numpy as np
import pytest

from hyla_lm.input.tokenizer import Tokenizer
from hyla_lm.tasks.choice import Sampling
from hyla_lm.tasks.sampling import Sampler
from hyla_lm.tasks.streaming import continuation, text_pieces

TEXT = "ba é€ 😀 ten"


def one_by_one(tokenizer: Tokenizer, prompt: list[int], ids: list[int]) -> list[str]:
    return list(text_pieces(tokenizer, prompt, [[token] for token in ids]))


def test_bytes_wait_for_the_rest_of_their_character(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(TEXT)
    assert sum(tokenizer.processor.IsByte(token) for token in ids) == 2 + 3 + 4
    pieces = one_by_one(tokenizer, [], ids)
    assert "".join(pieces) == TEXT
    assert "\ufffd" not in "".join(pieces) and pieces.count("") >= 1 + 2 + 3
    assert pieces[-1] == ""


@pytest.mark.parametrize("missing", [1, 2, 3])
def test_what_is_never_completed_comes_at_the_end(tokenizer: Tokenizer, missing: int) -> None:
    ids = tokenizer.encode("ba😀")[:-missing]
    pieces = one_by_one(tokenizer, [], ids)
    assert pieces[-1] == "\ufffd" * (4 - missing)
    assert "".join(pieces) == tokenizer.decode(ids)


def test_pieces_of_any_tokens_are_together_their_text(tokenizer: Tokenizer) -> None:
    rng = np.random.default_rng(0)
    prompt = tokenizer.encode("bast")
    for _ in range(200):
        ids = rng.integers(tokenizer.vocab_size, size=30).tolist()
        whole = tokenizer.decode(prompt + ids)[len(tokenizer.decode(prompt)) :]
        assert "".join(one_by_one(tokenizer, prompt, ids)) == whole
        assert continuation(tokenizer, prompt, ids) == whole


def test_a_stream_is_the_sample_in_several_pieces(sampler: Sampler) -> None:
    sampling = Sampling(max_tokens=30, temperature=0.8, seed=1)
    pieces = list(sampler.stream("bast", sampling))
    assert "".join(pieces) == sampler.sample(["bast"], sampling)[0].text
    assert sum(bool(piece) for piece in pieces) >= 30 // 8
