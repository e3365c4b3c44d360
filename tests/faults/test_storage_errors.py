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

from hyla_lm.input.prepared import Rows
from tests import preloaded
from tests.faults.kills import write_json
from tests.faults.runs import Command
from tests.faults.storage_errors import COMMANDS, Disk, drawn
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
def disk(library: Path, tiny_rows: Rows, tmp_path_factory: pytest.TempPathFactory) -> Disk:
    home = tmp_path_factory.mktemp("storage_errors")
    command = Command(write_gin(home, tiny_rows), home / "programs")
    return Disk(command, library, home / "runs", STEPS)


@pytest.mark.faults
@pytest.mark.timeout(4 * 3600)
def test_many_failing_calls_end_a_command_as_they_must(disk: Disk) -> None:
    count, seed = int(os.environ.get("STORAGE_ERRORS", "200")), int(os.environ.get("SEED", "0"))
    path = Path(os.environ.get("FAULTS", "runs/faults")) / "storage_errors.json"
    rng = random.Random(seed)
    calls = {command: disk.calls(command) for command in COMMANDS}
    verdicts = []
    while len(verdicts) < count:
        fault = drawn(rng, calls)
        verdict = disk.verdict(fault, f"run{len(verdicts)}")
        if verdict is None:
            print("missed", fault, flush=True)
            continue
        verdicts.append(verdict)
        print(f"{len(verdicts)} {fault}: {verdict.status} {verdict.faults or 'right'}", flush=True)
        write_json(path, [asdict(verdict) for verdict in verdicts])
    assert [v for v in verdicts if v.faults] == []
