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
from tensorboard.plugins.custom_scalar.layout_pb2 import Layout
from tensorboard.plugins.hparams import metadata
from tensorboard.util.tensor_util import make_ndarray

from hyla_lm.config.read_experiment import read_experiment
from hyla_lm.logs.sinks import Histogram, description
from hyla_lm.logs.tensorboard import SETTINGS, TensorBoard, tensorboard_name
from hyla_lm.run.folder import read_lines
from hyla_lm.train import train
from tests.conftest import SEQUENCE_LENGTH, TINY

pytestmark = pytest.mark.usefixtures("programs_once")

SMALL = ("LanguageModel.closing_prompt = 'ba'", "LanguageModel.samples = 2")
PROMPT = "LanguageModel.closing_prompt = 'ba'"
Train = Callable[..., None]
LOSS, CODES, PICTURE = "train/loss_nats", "attention/code_values/layer_0", "attention/p/layer_0"


@pytest.fixture(scope="module")
def go(tiny_rows: Any, tmp_path_factory: pytest.TempPathFactory) -> Train:
    gin_file = tmp_path_factory.mktemp("board") / "tiny.gin"
    gin_file.write_text(TINY.format(rows=tiny_rows, sequence_length=SEQUENCE_LENGTH))

    def train_with(workdir: Path, *bindings: str) -> None:
        train(read_experiment([str(gin_file)], [*SMALL, PROMPT, *bindings]), str(workdir))

    return train_with


@pytest.fixture(scope="module")
def run(go: Train, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 8 steps that was resumed to 12."""
    workdir = tmp_path_factory.mktemp("runs") / "small"
    go(workdir, "TrainConfig.steps = 8")
    go(workdir)
    return workdir


def events(workdir: Path) -> EventAccumulator:
    return EventAccumulator(str(workdir), {"tensors": 0}).Reload()


def texts(found: EventAccumulator, tag: str) -> dict[int, str]:
    return {e.step: make_ndarray(e.tensor_proto)[0].decode() for e in found.Tensors(tag)}


def read(folder: Path) -> EventMultiplexer:
    return EventMultiplexer(size_guidance={"tensors": 0}).AddRun(str(folder), "run").Reload()


def png(width: int, height: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGBA", (width, height)).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def written(tmp_path: Path) -> EventMultiplexer:
    board = TensorBoard(tmp_path, first=0)
    values = Histogram(np.array([3, 1]), np.array([-2.0, 0.0, 4.0]), sum=1.5, sum_squares=9.0)
    board.write(1, {LOSS: 5.0, CODES: values, PICTURE: png(7, 3)})
    board.close()
    return read(tmp_path)


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


def test_a_histogram_has_its_edges_and_counts(written: EventMultiplexer) -> None:
    [point] = written.Tensors("run", "4_attention/code_values/layer_0")
    buckets = make_ndarray(point.tensor_proto)
    low, high, count = buckets[buckets[:, 2] > 0].T
    assert (low.tolist(), high.tolist(), count.tolist()) == ([-2, 0], [0, 4], [3, 1])


def test_an_image_has_its_width_and_height(written: EventMultiplexer) -> None:
    [point] = written.Tensors("run", "4_attention/p/layer_0")
    assert point.tensor_proto.string_val[:2] == [b"7", b"3"]


def test_the_server_gives_the_description_of_a_tag(written: EventMultiplexer) -> None:
    provider = MultiplexerDataProvider(written, "logs")
    found = provider.list_scalars(
        RequestContext(), experiment_id="", plugin_name="scalars", run_tag_filter=None
    )
    assert found["run"]["1_train/1_loss_nats"].description == description(LOSS) != ""


def test_groups_and_losses_come_first_in_the_order_of_tensorboard() -> None:
    tags = ["suites/a/b", "perf/mfu", "canary/loss", "train/accuracy", "attention/entropy/layer_0"]
    tags += ["validation/loss_nats", "optim/gradient_norm", "train/bits_per_byte", "text/config"]
    tags += ["train/loss_nats", "validation/wiki_loss_nats"]
    found = sorted(map(tensorboard_name, tags))
    assert found == [
        "1_train/1_loss_nats",
        "1_train/2_bits_per_byte",
        "1_train/accuracy",
        "2_validation/1_loss_nats",
        "2_validation/wiki_loss_nats",
        "3_optim/gradient_norm",
        "4_attention/entropy/layer_0",
        "5_perf/mfu",
        "canary/loss",
        "suites/a/b",
        "text/config",
    ]


def test_settings_and_metrics_of_the_table_are_those_of_the_last_process(run: Path) -> None:
    """One file has them, whatever number of processes trained."""
    [path] = run.glob("events.out.tfevents.0*")
    assert path.name == SETTINGS
    tags = events(run).summary_metadata
    start = metadata.parse_session_start_info_plugin_data(
        tags[metadata.SESSION_START_INFO_TAG].plugin_data.content
    )
    assert start.hparams["TrainConfig.steps"].number_value == 12
    assert start.hparams["ModelConfig.attention"].string_value == "hyla"
    assert start.hparams["parameters"].number_value > 1000
    table = metadata.parse_experiment_plugin_data(tags[metadata.EXPERIMENT_TAG].plugin_data.content)
    assert {column.name for column in table.hparam_infos} == set(start.hparams)
    assert [column.name for column in table.hparam_infos if column.differs] == [
        "ModelConfig.attention",
        "parameters",
        "OptimizerConfig.learning_rate",
        "TrainConfig.steps",
        "TrainConfig.seed",
    ]
    assert "TrainConfig.hang_seconds" not in start.hparams
    metrics = [metric.name.tag for metric in table.metric_infos]
    assert set(metrics) <= set(tags), "every metric is a curve of the run"
    assert "2_validation/2_bits_per_byte" in metrics


def test_charts_are_of_curves_that_there_are(run: Path) -> None:
    found = events(run)
    [event] = found.Tensors("custom_scalars__config__")
    layout = Layout.FromString(make_ndarray(event.tensor_proto).item())
    [training, layers, _] = layout.category
    assert list(training.chart[0].multiline.tag) == [
        "^1_train/1_loss_nats$",
        "^2_validation/.*loss_nats$",
    ]
    assert "^3_optim/gradient_norm/.*$" in layers.chart[0].multiline.tag


def test_texts_tell_settings_parameters_and_environment(run: Path) -> None:
    found = events(run)
    assert "TrainConfig.steps = 8" in texts(found, "text/config")[0]
    assert "TrainConfig.steps = 12" in texts(found, "text/config")[8]
    parameters = texts(found, "text/parameters")[8]
    assert re.search(r"embed/table +320 x 16 +whole x whole +20,480 B", parameters)
    environment = texts(found, "text/environment")[8]
    assert {"jax", "git_revision", "compiled_step"} <= set(
        re.findall(r"^(\w+): .", environment, re.M)
    )


def test_samples_are_at_each_evaluation_once(run: Path) -> None:
    samples = texts(events(run), "text/samples")
    assert list(samples) == [4, 8, 12]
    for text in samples.values():
        assert text.count("```\nba") == 2


def test_samples_change_no_bit_of_training(run: Path, go: Train, tmp_path: Path) -> None:
    go(tmp_path / "run", "LanguageModel.samples = 0", "TrainConfig.steps = 8")
    losses = [
        [line for line in read_lines(workdir) if "train/loss_nats" in line][:3]
        for workdir in (run, tmp_path / "run")
    ]
    names = ("step", "train/loss_nats", "optim/gradient_norm")
    with_samples, without = [[[line[n] for n in names] for line in lines] for lines in losses]
    assert with_samples == without
    assert "text/samples" not in events(tmp_path / "run").Tags()["tensors"]
