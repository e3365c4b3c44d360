"""Where the time of a run goes, by a clock that the test sets."""

from contextlib import closing
from pathlib import Path

import pytest

from hyla_lm.errors import UserError
from hyla_lm.logs.step_log import RunClock
from hyla_lm.run.folder import PROCESS_SECONDS, RunFolder


class Clock:
    """Moves when it is told to, and jumps between processes."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Process:
    """A process of a run, which steps, evaluates, saves, and is killed."""

    def __init__(self, workdir: Path, clock: Clock, saved: dict[str, float]):
        self._folder, self.clock = RunFolder(str(workdir)), clock
        self.times = RunClock(self._folder, saved, clock(), clock)

    def spend(self, seconds: float) -> None:
        self.clock.now += seconds

    def step(self, count: int) -> None:
        self.times.restart()
        for _ in range(count):
            self.spend(2.0)
            self.times.step_ended()

    def killed(self) -> None:
        """What it held is gone; the time until the next process is nobody's."""
        self._folder.close()
        self.spend(10_000)


def test_steps_that_are_trained_again_count_once_and_time_between_processes_not_at_all(
    tmp_path: Path,
) -> None:
    clock = Clock()
    one = Process(tmp_path, clock, {})
    one.spend(10)  # begins
    one.step(5)
    saved = one.times.saved()
    with one.times.measured("evaluation_seconds"):
        one.spend(4)
    assert one.times.goodput() == pytest.approx(10 / 24)
    assert one.times.noted() == {"perf/evaluation_seconds": 4}
    one.step(8)
    assert one.times.goodput() == pytest.approx(26 / 40)
    assert one.times.noted() == {}, "what was noted is written once"
    one.spend(3)  # after its last line, so nobody knows
    one.killed()

    two = Process(tmp_path, clock, saved)
    two.spend(6)
    two.killed()  # before it wrote a line

    three = Process(tmp_path, clock, saved)
    three.spend(10)
    assert three.times.goodput() == pytest.approx(10 / 50)
    three.step(5)
    assert three.times.goodput() == pytest.approx(20 / 60)
    three.times.note_process_seconds()
    three.killed()

    back = Process(tmp_path, clock, saved)  # to an earlier checkpoint: its steps are lost
    assert back.times.goodput() == pytest.approx(10 / 60)
    back.killed()


def test_a_checkpoint_knows_the_time_if_the_file_is_lost(tmp_path: Path) -> None:
    clock = Clock()
    one = Process(tmp_path, clock, {})
    one.step(3)
    one.spend(6)
    saved = one.times.saved()
    one.killed()
    (tmp_path / PROCESS_SECONDS).unlink(missing_ok=True)
    two = Process(tmp_path, clock, saved)
    assert two.times.goodput() == pytest.approx(6 / 12)
    two.killed()


def test_a_line_of_seconds_cut_short_is_dropped_and_a_damaged_file_is_told(tmp_path: Path) -> None:
    (tmp_path / PROCESS_SECONDS).write_text("12.5\n99")
    with closing(RunFolder(str(tmp_path))) as folder:
        assert folder.process_seconds() == 12.5
        folder.note_process_seconds(20)
        assert folder.process_seconds() == 20
        (tmp_path / PROCESS_SECONDS).write_text("a\n")
        with pytest.raises(UserError, match=r"\.seconds is damaged \(no seconds\): delete it"):
            folder.process_seconds()


def test_speed_leaves_out_the_first_step_traces_and_what_is_between_steps(tmp_path: Path) -> None:
    clock = Clock()
    process = Process(tmp_path, clock, {})
    process.step(1)
    assert process.times.speed() is None
    process.spend(50)  # an evaluation
    process.step(2)
    with process.times.waiting_for_data():
        process.spend(1)
    process.times.step_ended()
    process.times.is_timed = False
    process.step(4)
    process.times.is_timed = True
    assert process.times.speed() == pytest.approx((5 / 3, 1 / 5))
    assert process.times.speed() is None, "each step counts once"
    process.killed()
