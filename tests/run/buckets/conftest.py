"""A stand-in for Google's store, and a small run that was never stopped to compare with."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from hyla_lm.input.prepared import Rows
from tests.run.buckets.fake_bucket import FakeBucket, hurry, lead_here
from tests.run.buckets.runs import SMALL
from tests.tiny_runs import train_process, write_gin


@pytest.fixture
def bucket() -> Iterator[FakeBucket]:
    with FakeBucket() as store:
        store.buckets_can_be_seen = True
        yield store


@pytest.fixture
def here(bucket: FakeBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process's gs:// is the stand-in too, and nobody waits between tries."""
    lead_here(bucket, monkeypatch)
    hurry(monkeypatch)


@pytest.fixture(scope="session")
def gin_file(tiny_rows: Rows, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gin(tmp_path_factory.mktemp("bucket_runs"), tiny_rows, SMALL)


@pytest.fixture(scope="session")
def whole(gin_file: Path) -> Path:
    """The folder, on a disk, of a run that was never stopped."""
    workdir = gin_file.parent / "whole"
    assert train_process(gin_file, workdir) == 0
    return workdir
