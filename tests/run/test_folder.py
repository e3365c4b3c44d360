"""The lines of a run's folder when it resumes: cut from their end, read in pieces, never lost."""

import json
import logging
import shutil
import tracemalloc
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hyla_lm import storage
from hyla_lm.input.prepared import Rows
from hyla_lm.run.folder import RunFolder, read_lines
from hyla_lm.run.summary import last_metrics_and_speed
from tests.run_lines import measured
from tests.tiny_runs import train, write_gin

TAGS = [(1, "train/x"), (1, "validation/x"), (2, "train/x"), (2, "validation/x")]
LINES = [{"step": step, tag: 1.0} for step, tag in [*TAGS, (2, "suites/a/r2")]]
MARK = {"step": 2, "lost_lines/after": 0, "lost_lines/until": 2}


def write(folder: Path, lines: list[Any], before: str = "") -> Path:
    path = folder / "metrics.jsonl"
    path.write_text(before + "".join(f"{json.dumps(line)}\n" for line in lines))
    return path


def test_lines_that_are_written_again_are_dropped(tmp_path: Path) -> None:
    write(tmp_path, [*LINES, {"step": 3}])
    with closing(RunFolder(str(tmp_path))) as folder:
        assert folder.keep_lines_until(2, ["validation/"]) == [LINES[2], LINES[4]]
    assert measured(tmp_path) == [*LINES[:3], LINES[4]]


def test_lines_of_earlier_steps_are_not_read_to_resume(tmp_path: Path) -> None:
    write(tmp_path, LINES, before="no line\n")
    with closing(RunFolder(str(tmp_path))) as folder:
        folder.keep_lines_until(2)
    assert (tmp_path / "metrics.jsonl").read_text().startswith("no line\n{")


def test_memory_does_not_grow_with_the_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "CHUNK_BYTES", 1000)
    many = [{"step": step, "perf/step_seconds": step / 1000} for step in range(20_000)]
    size = write(tmp_path, many).stat().st_size
    with closing(RunFolder(str(tmp_path))) as folder:
        tracemalloc.start()
        folder.keep_lines_until(19_998)
        assert last_metrics_and_speed(read_lines(tmp_path)) == ({}, pytest.approx(9.999))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < size / 5


def test_a_loss_is_marked_once_and_a_line_removed_while_training_counts(tmp_path: Path) -> None:
    path = write(tmp_path, LINES[:3])
    size = path.stat().st_size
    for left in ([], [MARK]):
        write(tmp_path, left)
        with closing(RunFolder(str(tmp_path))) as folder:
            assert folder.keep_lines_until(2, (), size) == [MARK]
            marked = folder.logged
            path.write_text("")
            folder.append_line(3, {})
            assert folder.logged == marked + path.stat().st_size


@pytest.fixture(scope="module")
def trained(tiny_rows: Rows, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A gin file and the run of it, whose 12 steps have lines of 3, 4, 6, 8, 9, 12 and 12."""
    home = tmp_path_factory.mktemp("lines")
    assert train(write_gin(home, tiny_rows), home / "run") == 0
    return home


def without(begin: int, end: int) -> Callable[[Path], None]:
    """Removes some lines."""

    def remove(run: Path) -> None:
        path = run / "metrics.jsonl"
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join(lines[:begin] + lines[end:]))

    return remove


def without_curves(run: Path) -> None:
    for path in run.glob("events.*"):
        path.unlink()


@pytest.mark.usefixtures("programs_once")
@pytest.mark.parametrize(
    ("remove", "between", "sentence"),
    [
        (without(0, 0), None, ""),
        (without(0, 7), (0, 12), "between the steps 0 and 12"),
        (lambda run: (run / "metrics.jsonl").unlink(), (0, 12), "between the steps 0 and 12"),
        (without(2, 7), (4, 12), "between the steps 4 and 12"),
        (without(0, 3), (0, 8), "between the steps 0 and 8"),
        (without(5, 6), (9, 12), "between the steps 9 and 12"),
        (without_curves, None, "lost its curves until step 12"),
    ],
    ids=["whole", "emptied", "gone", "end", "beginning", "last line", "curves"],
)
def test_a_resumed_run_says_once_what_is_gone_and_keeps_it_visible(
    remove: Callable[[Path], None],
    between: tuple[int, int] | None,
    sentence: str,
    trained: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = shutil.copytree(trained / "run", tmp_path / "run")
    remove(run)
    said = []
    for steps in (13, 14):
        caplog.clear()
        assert train(trained / "tiny.gin", run, f"TrainConfig.steps={steps}") == 0
        said.append([r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING])
    assert [len(of_process) for of_process in said] == [int(bool(sentence)), 0]
    assert all(sentence in one for one in said[0])
    marks = [line for line in measured(run, "lost_lines/")]
    ends = dict(zip(("lost_lines/after", "lost_lines/until"), between or (), strict=False))
    assert marks == ([{"step": 12, **ends}] if between else [])
