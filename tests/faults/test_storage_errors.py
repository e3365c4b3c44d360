"""Commands whose storage fails end with the right status; `make faults` fails many more calls."""

import functools
import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from hyla_lm.ending import DONE, MISTAKE, UNAVAILABLE
from hyla_lm.input.prepared import Rows
from tests import preloaded
from tests.faults.kills import write_json
from tests.faults.runs import Command
from tests.faults.storage_errors import (
    FOR_EVER,
    RESUME,
    TRAIN,
    Disk,
    Fault,
    Store,
    Verdict,
    table,
)
from tests.tiny_runs import write_gin

STEPS = 12


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What fails calls, loaded before all else into the processes of this module."""
    if not shutil.which("gcc"):
        pytest.fail("errors of the C library are injected by a library that needs gcc")
    path = tmp_path_factory.mktemp("inject") / "inject.so"
    source = Path(__file__).with_name("inject.c")
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", path, source], check=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LD_PRELOAD", str(path))
        patch.setattr(preloaded, "server", functools.cache(preloaded.Server))
        yield path


@pytest.fixture(scope="module")
def command(tiny_rows: Rows, tmp_path_factory: pytest.TempPathFactory) -> Command:
    home = tmp_path_factory.mktemp("storage_errors")
    return Command(write_gin(home, tiny_rows), Path(os.environ["JAX_COMPILATION_CACHE_DIR"]))


@pytest.fixture(scope="module")
def disk(library: Path, command: Command, tmp_path_factory: pytest.TempPathFactory) -> Disk:
    return Disk(command, tmp_path_factory.mktemp("disk") / "runs", STEPS)


@pytest.mark.parametrize(
    ("fault", "status"),
    [
        (Fault(TRAIN, "write", "^/checkpoints/5.*/ocdbt.*/d/", "ENOSPC"), MISTAKE),
        (Fault(TRAIN, "fsync", "^/events", "ENOSPC"), MISTAKE),
        (Fault(TRAIN, "fsync", "^/metrics.jsonl", "EIO"), DONE),
        (Fault(TRAIN, "write", "^/documents/", "EDQUOT"), MISTAKE),
        (Fault(TRAIN, "open", "^/[.][.]saved", "EMFILE", count=FOR_EVER), UNAVAILABLE),
        (Fault(RESUME, "list", "^/checkpoints$", "EACCES", count=FOR_EVER), MISTAKE),
        (Fault(RESUME, "read", "^/checkpoints/10/state", "ESTALE", count=FOR_EVER), UNAVAILABLE),
    ],
    ids=str,
)
def test_an_error_of_a_disk_has_its_status_and_the_same_command_resumes(
    fault: Fault, status: int, disk: Disk
) -> None:
    verdict = disk.verdict(fault, "run")
    assert verdict is not None and verdict.faults == []
    assert verdict.status == status


@pytest.mark.faults
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("kind", [Disk, Store])
def test_many_errors_of_storage_end_a_command_as_they_must(
    kind: type[Disk], library: Path, command: Command, tmp_path: Path
) -> None:
    """Half of the errors on a disk, half in a bucket."""
    if kind is Store:
        pytest.importorskip("gcsfs", reason="runs in gs:// need pip install 'hyla_lm[gcs]'")
    count, seed = int(os.environ.get("STORAGE_ERRORS", "200")), int(os.environ.get("SEED", "0"))
    name = f"storage_errors_{kind.__name__.lower()}.json"
    path = Path(os.environ.get("FAULTS", "runs/faults")) / name
    runs, rng = kind(command, tmp_path / "runs", STEPS), random.Random(seed)
    verdicts: list[Verdict] = []
    while len(verdicts) < count // 2:
        fault = runs.drawn(rng)
        verdict = runs.verdict(fault, f"run{len(verdicts)}")
        if verdict is not None:
            verdicts.append(verdict)
            print(f"{fault}: {verdict.status} {verdict.faults or 'right'}", flush=True)
            write_json(path, [asdict(verdict) for verdict in verdicts])
    print(table(verdicts), flush=True)
    assert [verdict for verdict in verdicts if verdict.faults] == []
