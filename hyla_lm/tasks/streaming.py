"""Text of tokens that come one after another: what is told is never taken back."""

from collections.abc import Iterable, Iterator, Sequence

from hyla_lm.input.tokenizer import Tokenizer


def text_pieces(
    tokenizer: Tokenizer, prompt: Sequence[int], chunks: Iterable[Sequence[int]]
) -> Iterator[str]:
    """The text that each chunk of tokens adds to a prompt, and at the end what is still held back.

    Bytes of a character wait for the rest of it. Together the pieces are `continuation` of all.
    """
    ids = list(prompt)
    told = len(tokenizer.decode(ids))
    for chunk in chunks:
        ids += chunk
        text = tokenizer.decode(ids[: len(ids) - _waiting(tokenizer, ids)])
        yield text[told:]
        told = len(text)
    yield tokenizer.decode(ids)[told:]


def continuation(tokenizer: Tokenizer, prompt: Sequence[int], new: Sequence[int]) -> str:
    """The text that new tokens add to a prompt."""
    return "".join(text_pieces(tokenizer, prompt, [new]))


def _waiting(tokenizer: Tokenizer, ids: Sequence[int]) -> int:
    """How many tokens at the end are the first bytes of a character that is not complete."""
    for count in range(1, min(3, len(ids)) + 1):
        byte = _byte_of(tokenizer, ids[-count])
        if byte is None or byte < 0x80:
            return 0
        if byte >= 0xC0:
            return count if count < _character_size(byte) else 0
    return 0


def _byte_of(tokenizer: Tokenizer, token: int) -> int | None:
    """The byte that a token stands for, as in <0xE2>; None for other pieces."""
    processor = tokenizer.processor
    return int(processor.IdToPiece(token)[1:-1], 16) if processor.IsByte(token) else None


def _character_size(first: int) -> int:
    """The bytes of a UTF-8 character that starts with this byte."""
    return 4 if first >= 0xF0 else 3 if first >= 0xE0 else 2
