"""Traces: which steps are in them, who asks for them, what they say; training is as ever."""

import os
import signal
from pathlib import Path
from typing import Any

import jax
import pytest

from hyla_lm.ending import STOPPED
from hyla_lm.input.prepared import Rows
from hyla_lm.logs.step_log import StepLog
from hyla_lm.run.folder import read_lines
from hyla_lm.run.profiling import DEFAULT_STEPS
from tests.run_lines import measured
from tests.tiny_runs import train, write_gin

pytestmark = pytest.mark.usefixtures("programs_once")

SCOPES = (
    "jvp(Decoder.hidden)/blocks/block_0/attention/attention._attend/attention.attend/blocked/",
    "jvp(Decoder.hidden)/blocks/block_0/feedforward/up/",
    "jvp(loss)/",
    "head",
    "optimizer/clip/",
    "optimizer/",
)


@pytest.fixture(scope="module")
def gin_file(tiny_rows: Rows, tmp_path_factory: pytest.TempPathFactory) -> Path:
    more = "TrainConfig.eval_every = 0\nOptimizerConfig.clip_norm = 1.0\n"
    return write_gin(tmp_path_factory.mktemp("profiling"), tiny_rows, more)


@pytest.fixture(scope="module")
def traced(gin_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 12 steps that traces two that are asked for before it begins, and steps 4 to 6."""
    workdir = tmp_path_factory.mktemp("traced") / "run"
    workdir.mkdir()
    (workdir / "profile").write_text("2\n")
    assert train(gin_file, workdir, "TrainConfig.profile = (4, 3)") == 0
    return workdir


def traces(workdir: Path) -> list[Path]:
    """The traces of a run, where TensorBoard's profile plugin looks for them."""
    found = (workdir / "plugins" / "profile").glob("*/*.xplane.pb")
    return sorted(found, key=lambda path: int(path.parent.name.rpartition("_")[2]))


def steps_in(trace: Path) -> list[int]:
    planes = jax.profiler.ProfileData.from_file(str(trace)).planes
    events = [event for plane in planes for line in plane.lines for event in line.events]
    return [dict(event.stats)["step_num"] for event in events if event.name == "train"]


def test_a_trace_has_the_steps_that_were_asked_for(traced: Path) -> None:
    assert [steps_in(trace) for trace in traces(traced)] == [[1, 2], [4, 5, 6]]
    assert not (traced / "profile").exists()


def test_a_trace_reads_like_the_model(traced: Path) -> None:
    content = traces(traced)[1].read_bytes()
    assert [scope for scope in SCOPES if scope.encode() not in content] == []


def test_steps_in_a_trace_are_not_timed(traced: Path) -> None:
    """Of 12 steps, 3 a line, the first 2 and 4 to 6 are traced; the first timed one is left out."""
    lines = [line for line in read_lines(traced) if "train/loss_nats" in line]
    timed = [line["step"] for line in lines if "perf/step_seconds" in line]
    assert timed == [9, 12] and len(lines) == 4


def test_a_file_asks_for_a_trace_and_a_stop_keeps_what_is_traced(
    gin_file: Path, traced: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked for after step 4, seen after step 6; the resumed run ends like the other."""
    workdir, record = tmp_path / "run", StepLog.record

    def asking(log: StepLog, step: int, *rest: Any) -> None:
        record(log, step, *rest)
        if step == 4:
            (workdir / "profile").touch()
        if step == 9:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(StepLog, "record", asking)
    assert train(gin_file, workdir) == STOPPED
    assert not (workdir / "profile").exists()
    (trace,) = traces(workdir)
    steps = steps_in(trace)
    assert steps == list(range(7, 7 + len(steps))) and 3 <= len(steps) < DEFAULT_STEPS
    monkeypatch.undo()
    # The range 8 to 11 began before the run resumes: what is left of it is traced.
    first = steps[-1] + 1
    assert train(gin_file, workdir, "TrainConfig.profile = (8, 4)") == 0
    assert steps_in(traces(workdir)[1]) == list(range(first, 12))
    assert measured(workdir) == measured(traced)
