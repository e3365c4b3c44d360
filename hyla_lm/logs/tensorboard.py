"""TensorBoard event files, without TensorFlow."""

import struct
from collections.abc import Mapping
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import (
    DATA_CLASS_BLOB_SEQUENCE,
    DATA_CLASS_SCALAR,
    DATA_CLASS_TENSOR,
    HistogramProto,
    Summary,
    SummaryMetadata,
)
from tensorboard.plugins.text.metadata import create_summary_metadata
from tensorboard.util.tensor_util import make_tensor_proto

from hyla_lm.logs.descriptions import description
from hyla_lm.logs.event_file import EventFile, file_of_now
from hyla_lm.logs.protocol import Histogram, Hyperparameter
from hyla_lm.logs.tensorboard_order import shown
from hyla_lm.logs.tensorboard_settings import settings_events
from hyla_lm.storage import written_aside

PREFIX = "events"  # of event files, which lie beside other files of a run
SETTINGS = f"{PREFIX}.out.tfevents.0.settings"  # read before the other files, which have the time
# By the kind of a value: the plugin that shows it, and what its data is to TensorBoard's server.
PLUGINS = {
    "simple_value": ("scalars", DATA_CLASS_SCALAR),
    "histo": ("histograms", DATA_CLASS_TENSOR),
    "image": ("images", DATA_CLASS_BLOB_SEQUENCE),
}
RGBA = 4  # tensorboard's number for the colours of an image


class TensorBoard:
    """Scalars, images and text of one run, on disk when a call returns.

    Tags are shown by the names of hyla_lm.logs.tensorboard_order. Points of earlier processes from
    step `first` on are purged; the earlier ones must have said where they began too.
    """

    def __init__(self, folder: Path, first: int):
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._described: set[str] = set()
        self._events = EventFile(file_of_now(folder, PREFIX))
        self._events.write(Event(step=first, session_log=SessionLog(status=SessionLog.START)))

    def hyperparameters(self, values: Mapping[str, Hyperparameter]) -> None:
        """Kept in a file of their own, which replaces that of earlier processes."""
        with written_aside(self._folder / SETTINGS) as aside:
            settings = EventFile(aside)
            for event in settings_events(values):
                settings.write(event)
            settings.close()

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        for tag, value in values.items():
            self._add(step, tag, Summary.Value(simple_value=value))
        self._events.flush()

    def histogram(self, step: int, tag: str, values: Histogram) -> None:
        edge_N1 = values.edge_N1
        content = HistogramProto(
            min=edge_N1[0],
            max=edge_N1[-1],
            num=values.count_N.sum(),
            sum=values.sum,
            sum_squares=values.sum_squares,
            bucket_limit=edge_N1[1:],
            bucket=values.count_N,
        )
        self._add(step, tag, Summary.Value(histo=content))
        self._events.flush()

    def image(self, step: int, tag: str, png: bytes) -> None:
        width, height = struct.unpack(">II", png[16:24])  # the header begins so (PNG, IHDR)
        image = Summary.Image(width=width, height=height, colorspace=RGBA, encoded_image_string=png)
        self._add(step, tag, Summary.Value(image=image))
        self._events.flush()

    def text(self, step: int, tag: str, markdown: str) -> None:
        metadata = create_summary_metadata(display_name="", description="")
        content = Summary.Value(tensor=make_tensor_proto([markdown]), metadata=metadata)
        self._add(step, tag, content)
        self._events.flush()

    def close(self) -> None:
        self._events.close()

    def _add(self, step: int, tag: str, value: Summary.Value) -> None:
        """Writes a point; the first of a tag carries its description."""
        value.tag = shown(tag)
        if tag not in self._described:
            self._described.add(tag)
            _describe(value, description(tag))
        self._events.write(Event(step=step, summary=Summary(value=[value])))


def _describe(value: Summary.Value, sentence: str) -> None:
    """Adds a description; the server takes it only with a data class."""
    if not sentence or value.WhichOneof("value") not in PLUGINS:
        return
    plugin, data_class = PLUGINS[value.WhichOneof("value")]
    plugin_data = SummaryMetadata.PluginData(plugin_name=plugin)
    value.metadata.CopyFrom(
        SummaryMetadata(
            summary_description=sentence, data_class=data_class, plugin_data=plugin_data
        )
    )
