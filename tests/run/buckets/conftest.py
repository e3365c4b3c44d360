"""A stand-in for Google's store, and a small run that was never stopped to compare with."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hyla_lm import storage as files
from tests.conftest import SEQUENCE_LENGTH, TINY
from tests.run.buckets.fake_bucket import FakeBucket, lead_here
from tests.run.buckets.runs import SMALL, train


@pytest.fixture
def bucket() -> Iterator[FakeBucket]:
    with FakeBucket() as store:
        store.buckets_can_be_seen = True
        yield store


@pytest.fixture
def here(bucket: FakeBucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process's gs:// is the stand-in too, and nobody waits between tries."""
    lead_here(bucket, monkeypatch)
    monkeypatch.setattr(files, "FIRST_WAIT_SECONDS", 1e-3)
    monkeypatch.setattr(files, "LONGEST_WAIT_SECONDS", 1e-3)
    sleep = SimpleNamespace(sleep=lambda _: asyncio.sleep(1e-3))
    monkeypatch.setattr("gcsfs.retry.asyncio", sleep)


@pytest.fixture(scope="session")
def gin_file(tiny_rows: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bucket_runs") / "small.gin"
    path.write_text(TINY.format(rows=tiny_rows, sequence_length=SEQUENCE_LENGTH) + SMALL)
    return path


@pytest.fixture(scope="session")
def whole(gin_file: Path) -> Path:
    """The folder, on a disk, of a run that was never stopped."""
    workdir = gin_file.parent / "whole"
    done = train(gin_file, str(workdir), {})
    assert done.returncode == 0, done.stderr
    return workdir
