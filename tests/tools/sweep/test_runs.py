"""The runs of a sweep are read before any trains, and a folder keeps one sweep."""

from pathlib import Path

import pytest

from hyla_lm.errors import UserError
from hyla_lm.tools.sweep.points import grid
from hyla_lm.tools.sweep.record import Record, locked
from hyla_lm.tools.sweep.report import listing
from hyla_lm.tools.sweep.runs import plan
from tests.tools.sweep.conftest import RATES, Plan, finish


def test_every_point_has_a_run_of_each_seed_with_its_own_settings(planned: Plan) -> None:
    runs = planned(seeds=2, bindings=("TrainConfig.steps=7",))
    assert [run.name for run in runs[:3]] == [
        "learning_rate=0.1/seed=0",
        "learning_rate=0.1/seed=1",
        "learning_rate=0.2/seed=0",
    ]
    e = runs[3].experiment
    assert (e.optimizer.learning_rate, e.train.seed, e.train.steps) == (0.2, 1, 7)
    assert runs[3].workdir.endswith("/sweep/learning_rate=0.2/seed=1")
    assert runs[3].arguments[1:] == [
        f"--workdir={runs[3].workdir}",
        "--gin.TrainConfig.steps=7",
        "--gin.OptimizerConfig.learning_rate=0.2",
        "--gin.TrainConfig.seed=1",
    ]


def test_a_file_whose_seed_is_a_macro_gets_all_that_the_macro_sets(tmp_path: Path) -> None:
    [_, run] = plan(str(tmp_path), ["gin/evals/fuzzy_logic_strict.gin"], (), 2, grid([], []))
    task = run.experiment.train.task
    assert (run.bindings, run.experiment.train.seed) == (("SEED=1",), 1)
    assert getattr(task, "seed", None) == 1


def test_a_sweep_may_get_points_and_loses_none(planned: Plan, tmp_path: Path) -> None:
    workdir, place = str(tmp_path), tmp_path / "sweep.json"
    Record(workdir, planned(seeds=2)).write()
    more = planned(f"{RATES[0]},0.4", seeds=3)
    Record(workdir, more).write()
    with pytest.raises(UserError, match="such as learning_rate=0.4: give them all"):
        Record(workdir, planned(seeds=3))
    place.write_text("{")
    with pytest.raises(UserError, match="sweep.json is damaged"):
        Record(workdir, more)


def test_a_run_with_other_settings_is_not_continued(planned: Plan, tmp_path: Path) -> None:
    finish(planned()[0], 1.0)
    Record(str(tmp_path), planned())
    with pytest.raises(UserError) as caught:
        Record(str(tmp_path), planned(bindings=("TrainConfig.batch_size=4",)))
    sentence = str(caught.value)
    assert "begun with TrainConfig.batch_size = 8 and this command has" in sentence
    assert "TrainConfig.batch_size = 4: give another --workdir" in sentence


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    place = str(tmp_path / "new")
    with locked(place), pytest.raises(UserError, match="is being trained by"), locked(place):
        pass
    with locked(place):
        pass


def test_the_listing_has_steps_tokens_and_what_is_done(planned: Plan) -> None:
    runs = planned(seeds=1)
    finish(runs[0], 1.0)
    _, *rows, total = listing(runs)
    assert rows[0].split() == ["learning_rate=0.1/seed=0", "10", "1,280", "finished"]
    assert rows[2].endswith("to do")
    assert total == "3 points x 1 seeds = 3 runs, 30 steps, 3,840 tokens"
