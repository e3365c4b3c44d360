"""Packing documents into rows, and opening rows that are whole or damaged."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hyla_lm.data.row_writer import shuffled, write_rows
from hyla_lm.data.train_tokenizer import train_tokenizer
from hyla_lm.errors import UserError
from hyla_lm.input.manifest import Manifest, check_manifest, read_manifest
from hyla_lm.input.packing import Packer, block_of, encode_texts
from hyla_lm.input.rows import RowReader
from hyla_lm.input.source import open_rows
from hyla_lm.input.tokenizer import Tokenizer
from hyla_lm.storage import as_path

Packed = tuple[Path, Manifest]


def read(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """All rows, shape (n, T+1), and their byte counts, shape (n)."""
    reader = RowReader(folder, read_manifest(folder))
    batch = reader.read(range(len(reader)))
    return batch["tokens"], batch["text_bytes"]


def stream(texts: list[str], tokenizer: Tokenizer) -> list[int]:
    ids = [[tokenizer.bos, *tokenizer.encode(text), tokenizer.eos] for text in texts]
    return [token for document in ids for token in document]


@pytest.mark.parametrize("length", [1, 2, 7, 16, 127, 5000])
@pytest.mark.parametrize("count", [1, 3])
def test_rows_hold_the_stream(
    tmp_path: Path, texts: list[str], tokenizer: Tokenizer, length: int, count: int
) -> None:
    chosen = ["é🙂\n" + text for text in texts[:count]] + ["a", ""]
    folder = tmp_path / "rows"
    manifest = write_rows(
        chosen,
        tokenizer,
        folder,
        split="validation",
        source="test",
        sequence_length=length,
        seed=0,
    )
    wanted = stream(chosen, tokenizer)
    rows, text_bytes = read(folder)
    assert rows.shape == (-(-(len(wanted) - 1) // length), length + 1)
    assert (rows[1:, 0] == rows[:-1, -1]).all()
    unpacked = [*rows[0, :1], *rows[:, 1:].ravel()]
    assert unpacked[: len(wanted)] == wanted
    assert set(unpacked[len(wanted) :]) <= {tokenizer.bos}
    assert text_bytes.sum() == manifest.text_bytes == sum(len(t.encode()) for t in chosen)
    assert manifest.tokens == len(wanted) - len(chosen)
    assert manifest.documents == len(chosen)
    assert manifest.max_token_id == max(wanted)


def test_one_tiny_document(tmp_path: Path, tokenizer: Tokenizer) -> None:
    packing = {"split": "train", "source": "test", "sequence_length": 16, "seed": 0}
    manifest = write_rows(["a"], tokenizer, tmp_path, **packing)
    rows, text_bytes = read(tmp_path)
    wanted = stream(["a"], tokenizer)
    assert rows.tolist() == [wanted + [tokenizer.bos] * (17 - len(wanted))]
    assert (text_bytes.tolist(), manifest.tokens) == ([1], len(wanted) - 1)
    assert [shard.name for shard in manifest.shards] == ["train-00000-of-00001.arrayrecord"]


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


def test_train_documents_are_shuffled_by_seed(
    packed: Packed, texts: list[str], tokenizer: Tokenizer
) -> None:
    order = list(shuffled(texts, 0))
    assert order != texts and sorted(order) == sorted(texts)
    assert order == list(shuffled(texts, 0)) != list(shuffled(texts, 1))
    folder, manifest = packed
    first = order[: len(order) // len(manifest.shards)]
    rows, _ = read(folder)
    wanted = stream(first, tokenizer)
    assert [*rows[0, :1], *rows[:, 1:].ravel()][: len(wanted)] == wanted


def test_whole_rows_open(packed: Packed, tokenizer: Tokenizer) -> None:
    folder, manifest = packed
    assert len(manifest.shards) > 2
    check_manifest(as_path(folder), manifest, tokenizer)
    split, _ = open_rows(str(folder), tokenizer, 16, 8)
    assert len(split.rows) == manifest.rows
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == []


def test_rows_repeat_bytewise(
    packed: Packed, tmp_path: Path, texts: list[str], tokenizer: Tokenizer
) -> None:
    packing = {"split": "train", "source": "test", "sequence_length": 16, "seed": 0}
    again = write_rows(texts, tokenizer, tmp_path / "again", shards=3, **packing)
    assert again == packed[1]


def test_damage_is_reported(packed: Packed, tokenizer: Tokenizer) -> None:
    folder, manifest = packed
    shard = folder / manifest.shards[0].name
    whole = shard.read_bytes()
    flipped = bytearray(whole)
    flipped[whole.index(RowReader(folder, manifest)._records[0])] ^= 1
    for damaged in (bytes(flipped), bytes(len(whole)), whole[:-1], whole[:100], b""):
        shard.write_bytes(damaged)
        with pytest.raises(UserError):
            open_rows(str(folder), tokenizer, 16, 8)
    shard.unlink()
    with pytest.raises(UserError, match="is missing"):
        open_rows(str(folder), tokenizer, 16, 8)


def test_damage_to_any_row_is_reported_when_it_is_read(packed: Packed) -> None:
    folder, manifest = packed
    reader = RowReader(folder, manifest)
    shard = folder / manifest.shards[1].name
    row = manifest.shards[0].rows + 50
    flipped = bytearray(shard.read_bytes())
    flipped[flipped.index(reader._records[row]) + 3] ^= 64
    before = reader.read([row - 1])["tokens"]
    shard.write_bytes(flipped)
    damaged = RowReader(folder, manifest)
    assert (damaged.read([row - 1])["tokens"] == before).all()
    with pytest.raises(UserError, match=f"{shard.name}: record 50 is damaged"):
        damaged.read([row])


def test_mismatches_are_reported(
    packed: Packed, tmp_path: Path, texts: list[str], tokenizer: Tokenizer
) -> None:
    folder, manifest = packed
    other = tmp_path / "other.model"
    train_tokenizer(texts[:50], 512, other)
    with pytest.raises(UserError, match="another tokenizer"):
        open_rows(str(folder), Tokenizer(str(other)), 16, 8)
    with pytest.raises(UserError, match="rows of 16 tokens, not 32"):
        open_rows(str(folder), tokenizer, 32, 8)
    with pytest.raises(UserError, match="fewer than one batch"):
        open_rows(str(folder), tokenizer, 16, 10**6)
    with pytest.raises(UserError, match="prepare"):
        check_manifest(as_path(folder), replace(manifest, rows=manifest.rows - 1), tokenizer)


def test_unfit_folders_and_texts(packed: Packed, tmp_path: Path, tokenizer: Tokenizer) -> None:
    packing = {"split": "train", "source": "test", "sequence_length": 16, "seed": 0}
    with pytest.raises(UserError, match="rows already"):
        write_rows(["a"], tokenizer, packed[0], **packing)
    with pytest.raises(UserError, match="no train documents"):
        write_rows([], tokenizer, tmp_path / "empty", **packing)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        write_rows(["a"], tokenizer, tmp_path / "file" / "rows", **packing)


def test_an_interrupted_write_leaves_no_manifest(tmp_path: Path, tokenizer: Tokenizer) -> None:
    def documents() -> Iterator[str]:
        yield from ["Some text."] * 2000
        raise KeyboardInterrupt

    packing = {"source": "test", "sequence_length": 4, "seed": 0}
    with pytest.raises(KeyboardInterrupt):
        write_rows(documents(), tokenizer, tmp_path, split="validation", **packing)
    with pytest.raises(UserError, match="does not exist"):
        open_rows(str(tmp_path), tokenizer, 4, 1)
