"""Every shard is compared with its manifest's SHA-256 once a run, beside its steps."""

import time
from collections import Counter
from pathlib import Path

import pytest
from array_record.python.array_record_module import ArrayRecordWriter

from hyla_lm.data.row_writer import WRITER_OPTIONS
from hyla_lm.input import manifest
from hyla_lm.input.prepared import Rows
from hyla_lm.input.row_stream import RowStream
from hyla_lm.input.rows import Records
from hyla_lm.input.source import Reading
from hyla_lm.parallel.sharding import BatchShard
from tests.conftest import SEQUENCE_LENGTH
from tests.tiny_runs import copied, train

pytestmark = pytest.mark.usefixtures("programs_once")

SPLITS = ["train", "validation"]
BATCH = 8


@pytest.fixture
def rows(tiny_rows: Rows, tmp_path: Path) -> Rows:
    return copied(tiny_rows, tmp_path / "rows")


def reorder(folder: str) -> Path:
    """Swaps two rows of the folder's last shard: its size and its first row stay as they were."""
    shard = sorted(Path(folder).glob("*.arrayrecord"))[-1]
    before = shard.read_bytes()
    records = list(Records([str(shard)]))
    records[3], records[4] = records[4], records[3]
    writer = ArrayRecordWriter(str(shard), WRITER_OPTIONS)
    for record in records:
        writer.write(record)
    writer.close()
    after = shard.read_bytes()
    assert len(after) == len(before) and after != before
    return shard


def stream(rows: Rows, shard: BatchShard | None = None) -> RowStream:
    data = rows.open(SEQUENCE_LENGTH, BATCH, Reading())
    opened = data.train.stream(shard or BatchShard(BATCH), None)
    assert isinstance(opened, RowStream)
    return opened


def wait_for(batches: RowStream) -> None:
    assert batches._verification is not None
    batches._verification._thread.join(30)
    assert not batches._verification._thread.is_alive()


@pytest.mark.parametrize("split", SPLITS)
def test_another_shard_ends_a_run(
    rows: Rows, tiny_gin: Path, tmp_path: Path, split: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shard = reorder(getattr(rows, split))
    named = [f'Rows.{name}="{getattr(rows, name)}"' for name in SPLITS]
    assert train(tiny_gin, tmp_path / "run", *named) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"hyla-lm: {shard} is not the shard its manifest describes (sha256): copy it again"
        "; every step so far may have read it."
    )


def test_processes_verify_every_shard_once_between_them(
    rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, plain = Counter[str](), manifest.chunks
    monkeypatch.setattr(manifest, "chunks", lambda path: (read.update([str(path)]), plain(path))[1])
    for part in [stream(rows, BatchShard(BATCH, 0, index, 3)) for index in range(3)]:
        wait_for(part)
        next(part)
        part.close()
    shards = {str(path) for s in SPLITS for path in Path(getattr(rows, s)).glob("*.arrayrecord")}
    assert read == Counter(shards) and len(shards) == 4


def test_a_run_that_ends_does_not_wait_for_verification(
    rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "BUSY_SHARE", 1e-9)
    batches = stream(rows)
    next(batches)
    started = time.monotonic()
    batches.close()
    assert time.monotonic() - started < 2
