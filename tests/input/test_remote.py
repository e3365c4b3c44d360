"""Buckets: reading from gs:// and writing to it gives the same bytes as on a disk."""

import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hyla_lm import storage as files
from hyla_lm.data.preparation import Preparation, prepare
from hyla_lm.data.text_files import TextFiles
from hyla_lm.errors import Unavailable, UserError
from hyla_lm.input.manifest import read_manifest
from hyla_lm.input.prepared import Rows
from hyla_lm.input.rows import Records
from hyla_lm.input.source import Reading
from hyla_lm.input.tokenizer import Tokenizer
from hyla_lm.parallel.sharding import BatchShard
from hyla_lm.storage import as_path, chunks, list_files
from tests.conftest import SEQUENCE_LENGTH, sentences
from tests.data.c4_layouts import write_json_gz
from tests.run.buckets.fake_bucket import DROPPED, FakeBucket, hurry, lead_here

gcsfs = pytest.importorskip("gcsfs", reason="reading gs:// needs pip install 'hyla_lm[gcs]'")

BATCH = 8
TEXTS = [sentences(seed, 1 + seed % 5) for seed in range(40)]
Batch = dict[str, np.ndarray]


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeBucket]:
    """The store that gs:// leads to while the test runs."""
    with FakeBucket() as store:
        lead_here(store, monkeypatch)
        yield store


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)


@pytest.fixture
def remote_rows(bucket: FakeBucket, tiny_rows: Rows) -> Rows:
    """The tiny rows and their tokenizer, as objects."""
    for split in ("train", "validation"):
        bucket.put(Path(getattr(tiny_rows, split)), f"bucket/{split}")
    bucket.objects["bucket/tokenizer.model"] = Path(tiny_rows.tokenizer).read_bytes()
    return Rows("gs://bucket/train", "gs://bucket/validation", "gs://bucket/tokenizer.model")


@pytest.fixture(scope="session")
def c4(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts in 3 shards."""
    home = tmp_path_factory.mktemp("c4")
    write_json_gz(TEXTS, home, "train", 3)
    return home


def taken(stream: Any, count: int) -> list[Batch]:
    batches = list(islice(stream, count))
    stream.close()
    return batches


def assert_equal(batches: list[Batch], expected: list[Batch]) -> None:
    for batch, other in zip(batches, expected, strict=True):
        assert batch.keys() == other.keys()
        for name in batch:
            np.testing.assert_array_equal(batch[name], other[name])


def preparation(tokenizer: Tokenizer, c4: Path, folder: str) -> Preparation:
    source = TextFiles(list_files([f"{c4}/c4-train.*"], "--input"))
    return Preparation(source, tokenizer, folder, "train", SEQUENCE_LENGTH, 3)


def test_a_preparation_in_a_bucket_makes_and_continues_the_same_bytes(
    bucket: FakeBucket, quick: None, c4: Path, tiny_rows: Rows, tmp_path: Path
) -> None:
    """Also where requests fail."""
    tokenizer = Tokenizer(tiny_rows.tokenizer)
    prepare(preparation(tokenizer, c4, str(tmp_path / "rows")))
    wanted = {f"bucket/rows/{p.name}": p.read_bytes() for p in (tmp_path / "rows").iterdir()}
    asked = preparation(tokenizer, c4, "gs://bucket/rows")
    bucket.objects["bucket/rows/"] = b""  # how a folder is made in the console
    asked.begin()
    asked.make_shard(1)
    made = len(bucket.requests)
    assert asked.missing() == [0, 2]
    for where in ("POST /upload", "train-00002-of-00003", "?delimiter"):
        bucket.fail(503, 2, where)
    prepare(asked)
    assert bucket.objects == wanted | {"bucket/rows/": b""}
    uploads = [request for request in bucket.requests[made:] if request.startswith("POST /upload")]
    assert uploads and not any("train-00001" in request for request in uploads)
    assert not any(fault.count for fault in bucket.faults)
    assert prepare(asked, workers=2) == read_manifest("gs://bucket/rows")


def test_rows_are_those_of_the_disk_also_when_requests_fail(
    bucket: FakeBucket, tiny_rows: Rows, remote_rows: Rows
) -> None:
    data = tiny_rows.open(SEQUENCE_LENGTH, BATCH, Reading())
    expected = taken(data.train.stream(BatchShard(BATCH), None), 12)
    for where in ("tokenizer.model?alt", "manifest.json?alt", "00001-of-00003.arrayrecord?alt"):
        bucket.fail(DROPPED, 1, where)
    data = remote_rows.open(SEQUENCE_LENGTH, BATCH, Reading(4))
    stream = data.train.stream(BatchShard(BATCH), None)
    first = list(islice(stream, 2))
    bucket.fail(DROPPED, 2, "arrayrecord?alt")
    assert_equal([*first, *taken(stream, 10)], expected)
    assert not any(fault.count for fault in bucket.faults)


def test_a_file_is_the_same_when_requests_fail(
    bucket: FakeBucket, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "CHUNK_BYTES", 1000)
    content = bucket.objects["bucket/text"] = os.urandom(10_500)
    parts = []
    for part in chunks(as_path("gs://bucket/text")):
        parts.append(part)
        bucket.fail(DROPPED, 5, "alt=media")
    assert b"".join(parts) == content


def test_an_array_record_that_cannot_be_opened_is_tried_again(
    bucket: FakeBucket, quick: None, remote_rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = f"{remote_rows.validation}/validation-00000-of-00001.arrayrecord"
    bucket.fail(403, 4, "alt=media")
    assert len(Records([file])) == read_manifest(remote_rows.validation).rows
    bucket.fail(403, 10**9, "alt=media")
    with pytest.raises(Unavailable, match=f"{file} cannot be read now.*injected"):
        Records([file])
    tries = len(bucket.requests)
    monkeypatch.setattr(files, "GIVE_UP_SECONDS", 0)
    with pytest.raises(Unavailable, match=f"{file} cannot be read now"):
        Records([file])
    assert len(bucket.requests) - tries < tries


def test_a_store_that_keeps_failing_is_given_up(
    bucket: FakeBucket, quick: None, c4: Path, remote_rows: Rows
) -> None:
    path = as_path(remote_rows.tokenizer)
    asked = preparation(Tokenizer(remote_rows.tokenizer), c4, "gs://bucket/rows")
    asked.begin()
    bucket.fail(503, 10**9)
    with pytest.raises(UserError, match="gs://bucket/tokenizer.model cannot be read now"):
        list(chunks(path))
    with pytest.raises(UserError, match="gs://bucket/rows/train-00000.* cannot be written now"):
        asked.make_shard(0)
    with pytest.raises(UserError, match="gs://another/train.*"):
        list_files(["gs://another/train*"], "--input")
    with pytest.raises(UserError, match="gs://third/tokenizer.model"):
        Tokenizer("gs://third/tokenizer.model").sha256  # noqa: B018


def test_without_a_client_the_extra_is_named() -> None:
    script = """
import sys
sys.modules["gcsfs"] = None
from hyla_lm.input.tokenizer import Tokenizer
Tokenizer("gs://bucket/tokenizer.model").content
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert "gs://bucket/tokenizer.model needs a bucket client: " in done.stderr
    assert "[gcs]" in done.stderr
