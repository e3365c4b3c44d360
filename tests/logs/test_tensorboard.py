"""What a run writes for TensorBoard, read by TensorBoard's own code."""

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.context import RequestContext
from tensorboard.util.tensor_util import make_ndarray

from hyla_lm.config.read_experiment import read_experiment
from hyla_lm.logs.sinks import Histogram, description
from hyla_lm.logs.tensorboard import TensorBoard, tensorboard_name
from hyla_lm.run.folder import read_lines
from hyla_lm.train import train
from tests.conftest import SEQUENCE_LENGTH, TINY

pytestmark = pytest.mark.usefixtures("programs_once")

SMALL = ("LanguageModel.closing_prompt = 'ba'", "LanguageModel.samples = 2")
Train = Callable[..., None]
LOSS, CODES, PICTURE = "train/loss_nats", "attention/code_values/layer_0", "attention/p/layer_0"


@pytest.fixture(scope="module")
def go(tiny_rows: Any, tmp_path_factory: pytest.TempPathFactory) -> Train:
    gin_file = tmp_path_factory.mktemp("board") / "tiny.gin"
    gin_file.write_text(TINY.format(rows=tiny_rows, sequence_length=SEQUENCE_LENGTH))

    def train_with(workdir: Path, *bindings: str) -> None:
        train(read_experiment([str(gin_file)], [*SMALL, *bindings]), str(workdir))

    return train_with


@pytest.fixture(scope="module")
def run(go: Train, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 8 steps that was resumed to 12."""
    workdir = tmp_path_factory.mktemp("runs") / "small"
    go(workdir, "TrainConfig.steps = 8")
    go(workdir)
    return workdir


def texts(workdir: Path, tag: str) -> dict[int, str]:
    found = EventAccumulator(str(workdir), {"tensors": 0}).Reload()
    return {e.step: make_ndarray(e.tensor_proto)[0].decode() for e in found.Tensors(tag)}


def read(folder: Path) -> EventMultiplexer:
    return EventMultiplexer(size_guidance={"tensors": 0}).AddRun(str(folder), "run").Reload()


def test_points_from_the_first_step_on_are_taken_back(tmp_path: Path) -> None:
    """Each process has its own file, though both begin in one second."""
    before = TensorBoard(tmp_path, first=0)
    for step in (1, 2, 3):
        before.write(step, {LOSS: step})
    before.close()
    now = TensorBoard(tmp_path, first=3)
    now.write(3, {LOSS: 30.0})
    points = read(tmp_path).Tensors("run", "1_train/1_loss_nats")  # on disk before it is closed
    assert [(p.step, p.tensor_proto.float_val[0]) for p in points] == [(1, 1), (2, 2), (3, 30)]
    now.close()


def test_each_kind_of_value_is_shown_with_its_description(tmp_path: Path) -> None:
    file = io.BytesIO()
    Image.new("RGBA", (7, 3)).save(file, "PNG")
    board = TensorBoard(tmp_path, first=0)
    values = Histogram(np.array([3, 1]), np.array([-2.0, 0.0, 4.0]), sum=1.5, sum_squares=9.0)
    board.write(1, {LOSS: 5.0, CODES: values, PICTURE: file.getvalue()})
    board.close()
    found = read(tmp_path)
    [point] = found.Tensors("run", "4_attention/code_values/layer_0")
    buckets = make_ndarray(point.tensor_proto)
    low, high, count = buckets[buckets[:, 2] > 0].T
    assert (low.tolist(), high.tolist(), count.tolist()) == ([-2, 0], [0, 4], [3, 1])
    [point] = found.Tensors("run", "4_attention/p/layer_0")
    assert point.tensor_proto.string_val[:2] == [b"7", b"3"], "width and height"
    scalars = MultiplexerDataProvider(found, "logs").list_scalars(
        RequestContext(), experiment_id="", plugin_name="scalars", run_tag_filter=None
    )
    assert scalars["run"]["1_train/1_loss_nats"].description == description(LOSS) != ""


def test_groups_and_losses_come_first_in_the_order_of_tensorboard() -> None:
    tags = ["suites/a/b", "perf/mfu", "train/accuracy", "validation/wiki_loss_nats"]
    assert sorted(map(tensorboard_name, [*tags, "train/bits_per_byte", LOSS])) == [
        "1_train/1_loss_nats",
        "1_train/2_bits_per_byte",
        "1_train/accuracy",
        "2_validation/wiki_loss_nats",
        "5_perf/mfu",
        "suites/a/b",
    ]


def test_texts_are_settings_environment_and_samples(run: Path) -> None:
    assert "TrainConfig.steps = 8" in texts(run, "text/config")[0]
    assert "TrainConfig.steps = 12" in texts(run, "text/config")[8]
    environment = texts(run, "text/environment")[8]
    assert {"jax", "git_revision", "compiled_step"} <= set(
        re.findall(r"^(\w+): .", environment, re.M)
    )
    samples = texts(run, "text/samples")
    assert list(samples) == [4, 8, 12], "at each evaluation once"
    assert all(text.count("```\nba") == 2 for text in samples.values())


def test_samples_change_no_bit_of_training(run: Path, go: Train, tmp_path: Path) -> None:
    go(tmp_path / "run", "LanguageModel.samples = 0", "TrainConfig.steps = 8")
    with_samples, without = (
        [line["train/loss_nats"] for line in read_lines(workdir) if "train/loss_nats" in line][:3]
        for workdir in (run, tmp_path / "run")
    )
    assert with_samples == without
