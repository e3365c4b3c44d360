"""What --over means: values, a grid, names of folders; runs are read before any trains."""

from pathlib import Path

import pytest

from hyla_lm.errors import UserError
from hyla_lm.tools.sweep.runner import locked
from hyla_lm.tools.sweep.runs import grid, label, plan, split
from tests.tools.sweep.conftest import Plan, finish

RATE = "OptimizerConfig.learning_rate"


def names(*over: str) -> list[str]:
    return [point.name for point in grid(over)]


def test_several_over_are_a_grid_whose_last_changes_fastest() -> None:
    assert names(f"{RATE}=3e-3,1e-2", "ModelConfig.attention=hyla,softmax") == [
        "learning_rate=0.003,attention=hyla",
        "learning_rate=0.003,attention=softmax",
        "learning_rate=0.01,attention=hyla",
        "learning_rate=0.01,attention=softmax",
    ]
    assert names() == ["unchanged"]


def test_commas_in_brackets_and_quotes_belong_to_a_value() -> None:
    assert split("hyla,('a','b'),\"it's, so\"") == ["hyla", "('a','b')", '"it\'s, so"']


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("1e-2", "0.01"),
        ("('hyla', 'softmax')", "hyla+softmax"),
        ("@SampleCorpus()", "SampleCorpus"),
        ("a/b", "a_b-07f4401c"),
        ("x" * 99, "x" * 40 + "-dfcef126"),
    ],
)
def test_the_folder_of_a_value_stays_the_same(text: str, name: str) -> None:
    """Or a sweep that was begun would not find its runs."""
    assert label("A.b", text) == name


def test_names_are_distinct() -> None:
    """Fields of one name by their class, long names and gin files of other folders by checksums."""
    assert names("LogConfig.every=1", "CheckpointConfig.every=2") == [
        "LogConfig.every=1,CheckpointConfig.every=2"
    ]
    one, other = names(*(f"Class{n}.a_field_of_a_long_name_{n}=1" for n in range(20)), "Z.z=1,2")
    assert one != other and max(len(one), len(other)) < 200
    assert label("gin_file", "gin/quickstart.gin") == "quickstart"
    assert label("gin_file", "a/model.gin") != label("gin_file", "b/model.gin")


def test_every_point_has_a_run_of_each_seed_with_its_own_settings(planned: Plan) -> None:
    runs = planned(seeds=2, bindings=("TrainConfig.steps=7",))
    assert [run.name for run in runs[1:3]] == [
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
    points = grid(["gin_file=gin/evals/fuzzy_logic_strict.gin"])
    [_, run] = plan(str(tmp_path), [], (), 2, points)
    task = run.experiment.train.task
    assert (run.bindings, run.experiment.train.seed) == (("SEED=1",), 1)
    assert getattr(task, "seed", None) == 1


def test_a_run_with_other_settings_is_not_continued(planned: Plan) -> None:
    finish(planned()[0], 1.0)
    with pytest.raises(UserError, match="begun with other settings"):
        planned(bindings=("TrainConfig.batch_size=4",))[0].summary()


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    place = str(tmp_path / "new")
    with locked(place), pytest.raises(UserError, match="is being trained by"), locked(place):
        pass
    with locked(place):
        pass
