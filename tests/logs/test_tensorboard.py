"""What a run writes for TensorBoard, read by TensorBoard's own code."""

import io
from pathlib import Path

import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.util.tensor_util import make_ndarray

from hyla_lm.config.read_experiment import read_experiment
from hyla_lm.logs.tensorboard import TensorBoard
from hyla_lm.train import train

pytestmark = pytest.mark.usefixtures("programs_once")

SMALL = ("LanguageModel.closing_prompt = 'ba'", "LanguageModel.samples = 2")
LOSS, PICTURE = "train/loss_nats", "attention/head_pictures/layer_0"


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
    points = read(tmp_path).Tensors("run", LOSS)  # on disk before it is closed
    assert [(p.step, p.tensor_proto.float_val[0]) for p in points] == [(1, 1), (2, 2), (3, 30)]
    now.close()


def test_pictures_have_their_size(tmp_path: Path) -> None:
    file = io.BytesIO()
    Image.new("RGBA", (7, 3)).save(file, "PNG")
    board = TensorBoard(tmp_path, first=0)
    board.write(1, {PICTURE: file.getvalue()})
    board.close()
    [point] = read(tmp_path).Tensors("run", PICTURE)
    assert point.tensor_proto.string_val[:2] == [b"7", b"3"], "width and height"


def test_samples_are_there_at_each_evaluation_once(tiny_gin: Path, tmp_path: Path) -> None:
    """The run is resumed at a step that was evaluated."""
    for bindings in ((*SMALL, "TrainConfig.steps = 8"), SMALL):
        train(read_experiment([str(tiny_gin)], bindings), str(tmp_path / "run"))
    run = EventAccumulator(str(tmp_path / "run"), {"tensors": 0}).Reload()
    events = run.Tensors("text/samples")
    texts = {e.step: make_ndarray(e.tensor_proto)[0].decode() for e in events}
    assert list(texts) == [4, 8, 12]
    assert all(text.count("```\nba") == 2 for text in texts.values())
