"""Packing documents into rows: tokens, bytes and order."""

from pathlib import Path

import numpy as np
import pytest

from hyla_lm.data.preparation import write_rows
from hyla_lm.input.manifest import Manifest, read_manifest
from hyla_lm.input.packing import Packer, block_of, encode_texts
from hyla_lm.input.rows import RowReader
from hyla_lm.input.tokenizer import Tokenizer
from tests.data.conftest import PACKED

Packed = tuple[Path, Manifest]


def read(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """All rows, shape (n, T+1), and their byte counts, shape (n)."""
    reader = RowReader(folder, read_manifest(folder))
    batch = reader.read(range(len(reader)))
    return batch["tokens"], batch["text_bytes"]


def stream(texts: list[str], tokenizer: Tokenizer) -> list[int]:
    ids = [[tokenizer.bos, *tokenizer.encode(text), tokenizer.eos] for text in texts]
    return [token for document in ids for token in document]


@pytest.mark.parametrize(("length", "count"), [(1, 3), (127, 3), (16, 0)])
def test_rows_hold_the_stream(
    tmp_path: Path, texts: list[str], tokenizer: Tokenizer, length: int, count: int
) -> None:
    chosen = ["é🙂\n" + text for text in texts[:count]] + ["a", ""]
    packing = {**PACKED, "sequence_length": length}
    manifest = write_rows(chosen, tokenizer, tmp_path / "rows", split="validation", **packing)
    wanted = stream(chosen, tokenizer)
    rows, text_bytes = read(tmp_path / "rows")
    assert rows.shape == (-(-(len(wanted) - 1) // length), length + 1)
    assert (rows[1:, 0] == rows[:-1, -1]).all()
    unpacked = [*rows[0, :1], *rows[:, 1:].ravel()]
    assert unpacked[: len(wanted)] == wanted
    assert set(unpacked[len(wanted) :]) <= {tokenizer.bos}
    assert text_bytes.sum() == manifest.text_bytes == sum(len(t.encode()) for t in chosen)
    assert manifest.tokens == len(wanted) - len(chosen)
    assert manifest.documents == len(chosen)
    assert manifest.max_token_id == max(wanted)
    assert [shard.name for shard in manifest.shards] == ["validation-00000-of-00001.arrayrecord"]


def test_bytes_are_shared_in_proportion(tokenizer: Tokenizer) -> None:
    text = "The word.\nIs é."
    block = encode_texts(["before", text], tokenizer)
    start, end = block.starts_D[1], block.ends_D[1]
    shares = np.diff(block.text_bytes_before(np.arange(start, end + 1)))
    assert shares.sum() == len(text.encode())
    assert (shares[0], shares[-1]) == (0, 0)
    assert np.abs(shares - tokenizer.piece_bytes[block.tokens_N[start:end]]).max() <= 1
    empty = block_of([np.empty(0, np.int32)], [5], tokenizer)
    assert np.diff(empty.text_bytes_before(np.arange(3))).sum() == 5


def test_bytes_of_a_row_are_those_of_its_targets(texts: list[str], tokenizer: Tokenizer) -> None:
    """Also where a row ends in a later block than it begins."""
    blocks = [encode_texts(texts[first : first + 2], tokenizer) for first in (0, 2, 4)]
    ends = [np.arange(len(block.tokens_N) + 1) for block in blocks]
    shares = [np.diff(b.text_bytes_before(at)) for b, at in zip(blocks, ends, strict=True)]
    packer = Packer(16, tokenizer)
    parts = [*map(packer.push, blocks), packer.last()]
    of_targets = np.concatenate(shares)[1:]
    wanted = np.add.reduceat(of_targets, np.arange(0, len(of_targets), 16))
    assert np.concatenate([part.text_bytes for part in parts]).tolist() == wanted.tolist()


def test_train_documents_are_shuffled_by_seed_and_repeat_bytewise(
    packed_once: Packed, tmp_path: Path, texts: list[str], tokenizer: Tokenizer
) -> None:
    folder, manifest = packed_once
    order = [texts[index] for index in np.random.default_rng(0).permutation(len(texts))]
    first = order[: len(order) // len(manifest.shards)]
    wanted = stream(first, tokenizer)
    rows, _ = read(folder)
    assert [*rows[0, :1], *rows[:, 1:].ravel()][: len(wanted)] == wanted
    again = write_rows(texts, tokenizer, tmp_path / "again", split="train", shards=3, **PACKED)
    assert again == manifest
