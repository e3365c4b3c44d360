"""Points that the TensorBoard sink writes, read by TensorBoard's own server code."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.context import RequestContext
from tensorboard.util.tensor_util import make_ndarray

from hyla_lm.logs.descriptions import description
from hyla_lm.logs.protocol import Histogram
from hyla_lm.logs.tensorboard import TensorBoard

LOSS, CODES, PICTURE = "train/loss_nats", "attention/code_values/layer_0", "attention/p/layer_0"


def read(folder: Path) -> EventMultiplexer:
    return EventMultiplexer(size_guidance={"tensors": 0}).AddRun(str(folder), "run").Reload()


def png(width: int, height: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGBA", (width, height)).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def written(tmp_path: Path) -> EventMultiplexer:
    board = TensorBoard(tmp_path, first=0)
    board.scalars(1, {LOSS: 5.0})
    values = Histogram(np.array([3, 1]), np.array([-2.0, 0.0, 4.0]), sum=1.5, sum_squares=9.0)
    board.histogram(1, CODES, values)
    board.image(1, PICTURE, png(7, 3))
    board.close()
    return read(tmp_path)


def test_points_from_the_first_step_on_are_taken_back(tmp_path: Path) -> None:
    """Each process has a file of its own, though both begin in one second."""
    before = TensorBoard(tmp_path, first=0)
    for step in (1, 2, 3):
        before.scalars(step, {LOSS: step})
    before.close()
    now = TensorBoard(tmp_path, first=3)
    now.scalars(3, {LOSS: 30.0})
    now.close()
    points = read(tmp_path).Tensors("run", "1_train/1_loss_nats")
    assert [(p.step, p.tensor_proto.float_val[0]) for p in points] == [(1, 1), (2, 2), (3, 30)]


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
