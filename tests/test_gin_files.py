"""Reading gin: a configuration is a value, whatever else is read before, after or meanwhile."""

from collections.abc import Iterator
from pathlib import Path

import gin
import pytest

from hyla_lm.config import gin_files
from hyla_lm.config.experiment import Experiment
from hyla_lm.config.gin_files import Written
from hyla_lm.config.read_experiment import read_experiment
from hyla_lm.errors import UserError
from hyla_lm.input.prepared import Rows
from hyla_lm.tasks.language_model import LanguageModel


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """What every test here promises: gin is as it was, also after an error."""
    yield
    assert not gin.config._CONFIG and not gin.config._OPERATIVE_CONFIG and not gin.config._IMPORTS


def written(path: Path, *lines: str) -> str:
    path.write_text("".join(f"{line}\n" for line in lines))
    return str(path)


def read_again(experiment: Experiment) -> Experiment:
    return read_experiment([Written("config.gin", experiment.text)], [])


@pytest.mark.parametrize(
    "bindings",
    [
        ["ModelConfig.attention = ('hyla', 'softmax')", "ModelConfig.num_layers = 4"],
        ["OptimizerConfig.learning_rate = 3.1234567891234e-07", "OptimizerConfig.epsilon = 1e-15"],
        ["STEPS = 30", "TrainConfig.steps = %STEPS", "TrainConfig.eval_every = %STEPS"],
        ["LanguageModel.data = @other/Rows()", "other/Rows.train = 'elsewhere'"],
        ["TrainConfig.task = @short/LanguageModel()", "short/LanguageModel.sequence_length = 8"],
        ["Rows.train = 'it\\'s \"quoted\" \\\\ and = long " + "x" * 200 + "'"],
        ["import hyla_lm.evals.suites", "TrainConfig.suites = (@FuzzyLogicSuite(),)"],
    ],
    ids="; ".join,
)
def test_the_text_gives_the_same_experiment(tiny_gin: Path, bindings: list[str]) -> None:
    used = read_experiment([str(tiny_gin)], bindings)
    again = read_again(used)
    assert (again, again.text) == (used, used.text)


def test_bindings_come_after_files_and_later_ones_win(tiny_gin: Path, tmp_path: Path) -> None:
    more = written(tmp_path / "more.gin", "TrainConfig.seed = 20", "TrainConfig.batch_size = 8")
    bindings = ["TrainConfig.seed = 30", "TrainConfig.seed = 31", "TrainConfig.steps = 20"]
    train = read_experiment([str(tiny_gin), more], bindings).train
    assert (train.steps, train.seed, train.batch_size) == (20, 31, 8)


def test_files_that_contradict_each_other_are_named(tiny_gin: Path, tmp_path: Path) -> None:
    reference = "LanguageModel.data = @other/Rows()"
    for line, sentence in {
        "TrainConfig.steps = 20": "TrainConfig.steps = 12 and {other} sets it to 20: leave",
        reference: "LanguageModel.data = @Rows() and {other} sets it to @other/Rows(): leave",
    }.items():
        other = written(tmp_path / "other.gin", line)
        with pytest.raises(UserError) as error:
            read_experiment([str(tiny_gin), other], [line])
        assert str(error.value).startswith(f"{tiny_gin} sets {sentence.format(other=other)}")


def test_a_file_that_includes_another_may_change_it(tiny_gin: Path, tmp_path: Path) -> None:
    include = f"include '{tiny_gin}'"
    changed = written(tmp_path / "changed.gin", include, "TrainConfig.steps = 20")
    same = written(tmp_path / "same.gin", include, "TrainConfig.seed = 4")
    assert read_experiment([changed], []).train.steps == 20
    assert read_experiment([str(tiny_gin), same], []).train.seed == 4
    with pytest.raises(UserError, match=r"TrainConfig\.steps = 12 and"):
        read_experiment([same, changed], [])


def test_a_setting_of_what_nothing_builds_is_named(tiny_gin: Path, tmp_path: Path) -> None:
    for binding, name in (
        ("other/Rows.train = 'a'", "other/Rows"),
        ("C4Stream.train = ('a',)", "C4Stream"),
    ):
        for files, bindings in (([], [binding]), ([written(tmp_path / "b.gin", binding)], [])):
            with pytest.raises(UserError) as error:
                read_experiment([str(tiny_gin), *files], bindings)
            assert str(error.value) == (
                f"{name}.train is set but nothing builds {name}: bind a setting to @{name}(), "
                "add a gin file that does, or remove it."
            )


def test_what_files_set_for_a_class_they_use_may_be_replaced(
    tiny_gin: Path, tmp_path: Path
) -> None:
    replaced = ["LanguageModel.data = @C4Stream()", "C4Stream.train = ('a',)"]
    by_binding = read_experiment([str(tiny_gin)], replaced)
    including = written(tmp_path / "mine.gin", f"include '{tiny_gin}'", *replaced)
    assert read_experiment([including], []) == by_binding
    assert "Rows" not in by_binding.text
    with pytest.raises(UserError, match=r"Rows\.train is set but nothing builds Rows"):
        read_experiment([str(tiny_gin)], [*replaced, "Rows.train = 'changed in vain'"])


def test_a_setting_without_a_scope_is_used_in_every_scope() -> None:
    bindings = ["LanguageModel.data = @other/Rows()", "Rows.train = 'a'"]
    (model,), _ = gin_files.read([], bindings, LanguageModel)
    assert model.data == Rows(train="a")
