"""A run with everything measured: what it writes, and that a resumed run writes the same."""

import io
import math
import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from hyla_lm.config.experiment import Experiment
from hyla_lm.config.read_experiment import read_experiment
from hyla_lm.logs.step_log import StepLog
from hyla_lm.run.folder import read_lines
from hyla_lm.train import train
from tests.conftest import SEQUENCE_LENGTH
from tests.run_lines import measured
from tests.tiny_runs import write_gin

pytestmark = pytest.mark.usefixtures("programs_once")

EVERYTHING = ["LogConfig.layers = True", "LogConfig.details_every = 5", "LogConfig.every = 3"]
CURVES = Path(__file__).parents[2] / "docs" / "curves.md"
LAYERS = ("block_0", "block_1", "embed", "final_norm")
SIZES = {"images": 0, "scalars": 0}


class Killed(Exception):
    """The process is gone."""


@pytest.fixture(scope="module")
def experiment(tiny_rows, tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    path = write_gin(tmp_path_factory.mktemp("details"), tiny_rows)
    variants = ["ModelConfig.attention = ('hyla', 'softmax')", "ModelConfig.num_layers = 2"]
    return read_experiment([str(path)], [*EVERYTHING, *variants])


@pytest.fixture(scope="module")
def whole(experiment: Experiment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    workdir = tmp_path_factory.mktemp("whole") / "run"
    train(experiment, str(workdir))
    return workdir


def events(workdir: Path) -> EventAccumulator:
    found = EventAccumulator(str(workdir), size_guidance=SIZES)
    return found.Reload()


def test_every_logged_point_has_the_norms_of_every_layer(whole: Path) -> None:
    for line in measured(whole, "optim/"):
        for kind in ("gradient_norm", "update_norm", "parameter_norm"):
            of_layers = [line[f"optim/{kind}/{name}"] for name in LAYERS]
            assert 0 < max(of_layers) <= line[f"optim/{kind}"] < sum(of_layers)
    assert [line["step"] for line in measured(whole, "optim/")] == [3, 6, 9, 12]


def test_details_have_what_means_something_in_a_layer(whole: Path) -> None:
    lines = measured(whole, "attention/")
    assert [line.pop("step") for line in lines] == [5, 10, 12]
    hyla = ("score_rms/layer_0", "score_max/layer_0", "code_rank/layer_0", "dead_units/layer_0")
    softmax = ("score_rms/layer_1", "score_max/layer_1", "code_rank/layer_1", "entropy/layer_1")
    for line in lines:
        assert set(line) == {f"attention/{name}" for name in (*hyla, *softmax)}
        assert all(map(math.isfinite, line.values()))
        assert 1 <= line["attention/code_rank/layer_0"] <= 2, "two heads"
        assert 0 < line["attention/entropy/layer_1"] < math.log(SEQUENCE_LENGTH)


def test_pictures_are_in_tensorboard(whole: Path) -> None:
    found = events(whole)
    tags = [f"attention/head_pictures/layer_{layer}" for layer in (0, 1)]
    assert sorted(found.Tags()["images"]) == tags
    for tag in tags:
        assert [image.step for image in found.Images(tag)] == [5, 10, 12]
        size = Image.open(io.BytesIO(found.Images(tag)[0].encoded_image_string)).size
        assert size[1] == 256 and size[0] > 512, "two heads"


def test_every_tag_has_its_row_in_the_documentation(whole: Path) -> None:
    tags = {tag for line in read_lines(whole) for tag in line if tag != "step"}
    rows = re.findall(r"^\| `([^`]+/[^`]+)` \|", CURVES.read_text(), re.MULTILINE)
    patterns = [row for row in rows if row not in ("train/*", "perf/*")]
    for tag in tags:
        assert any(fnmatchcase(tag, pattern) for pattern in patterns), tag
    assert {"perf/compile_seconds", "perf/save_seconds", "perf/evaluation_seconds"} < tags
    assert {"perf/details_seconds", "perf/tokens_per_second_per_chip"} < tags


def test_a_killed_run_measures_the_same_as_one_never_stopped(
    experiment: Experiment, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is killed at step 8; step 5 is saved, in the middle of a window, and its details owed."""
    workdir, record = tmp_path / "run", StepLog.record

    def killing(log: StepLog, step: int, *arguments: Any) -> None:
        if step == 8:
            raise Killed
        record(log, step, *arguments)

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(StepLog, "record", killing)
        train(experiment, str(workdir))
    train(experiment, str(workdir))
    assert measured(workdir) == measured(whole)
    ours, theirs = events(workdir), events(whole)
    for tag in theirs.Tags()["images"]:
        images = [[x.encoded_image_string for x in found.Images(tag)] for found in (ours, theirs)]
        assert images[0] == images[1]
