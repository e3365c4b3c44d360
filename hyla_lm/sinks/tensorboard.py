"""TensorBoard event files, without TensorFlow."""

import struct
import time
from collections.abc import Mapping
from pathlib import Path

from tensorboard.compat.proto.summary_pb2 import (
    DATA_CLASS_BLOB_SEQUENCE,
    DATA_CLASS_SCALAR,
    DATA_CLASS_TENSOR,
    SummaryMetadata,
)
from tensorboardX import summary
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary
from tensorboardX.record_writer import RecordWriter

from hyla_lm.input.files import written_aside
from hyla_lm.sinks.descriptions import description
from hyla_lm.sinks.protocol import Histogram, Hyperparameter
from hyla_lm.sinks.tensorboard_order import shown
from hyla_lm.sinks.tensorboard_settings import settings_events

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

    Tags are shown by the names of hyla_lm.sinks.tensorboard_order. Points of earlier processes from
    step `first` on are purged; the earlier ones must have said where they began too.
    """

    def __init__(self, folder: Path, first: int):
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._described: set[str] = set()
        self._events = EventsWriter(str(folder / PREFIX))
        self._write(Event(step=first, session_log=SessionLog(status=SessionLog.START)))

    def hyperparameters(self, values: Mapping[str, Hyperparameter]) -> None:
        """Kept in a file of their own, which replaces that of earlier processes."""
        with written_aside(self._folder / SETTINGS) as aside:
            settings = RecordWriter(str(aside))
            for event in settings_events(values):
                settings.write(event.SerializeToString())
            settings.close()

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        for tag, value in values.items():
            self._add(step, tag, summary.scalar(shown(tag), value))
        self._events.flush()

    def histogram(self, step: int, tag: str, values: Histogram) -> None:
        edge_N1 = values.edge_N1
        content = summary.histogram_raw(
            shown(tag),
            float(edge_N1[0]),
            float(edge_N1[-1]),
            int(values.count_N.sum()),
            values.sum,
            values.sum_squares,
            edge_N1[1:].tolist(),
            values.count_N.tolist(),
        )
        self._add(step, tag, content)
        self._events.flush()

    def image(self, step: int, tag: str, png: bytes) -> None:
        width, height = struct.unpack(">II", png[16:24])  # the header begins so (PNG, IHDR)
        image = Summary.Image(width=width, height=height, colorspace=RGBA, encoded_image_string=png)
        self._add(step, tag, Summary(value=[Summary.Value(tag=shown(tag), image=image)]))
        self._events.flush()

    def text(self, step: int, tag: str, markdown: str) -> None:
        content = summary.text(tag, markdown)
        content.value[0].tag = shown(tag)
        self._add(step, tag, content)
        self._events.flush()

    def close(self) -> None:
        self._events.close()

    def _add(self, step: int, tag: str, content: Summary) -> None:
        """Writes a point; the first of a tag carries its description."""
        if tag not in self._described:
            self._described.add(tag)
            _describe(content.value[0], description(tag))
        self._write(Event(step=step, summary=content))

    def _write(self, event: Event) -> None:
        event.wall_time = time.time()
        self._events.write_event(event)


def _describe(value: Summary.Value, sentence: str) -> None:
    """Adds a description; the server takes it only with a data class, which tensorboardX lacks."""
    if not sentence or value.WhichOneof("value") not in PLUGINS:
        return
    plugin, data_class = PLUGINS[value.WhichOneof("value")]
    metadata = SummaryMetadata(summary_description=sentence, data_class=data_class)
    metadata.plugin_data.plugin_name = plugin
    value.metadata.MergeFromString(metadata.SerializeToString())
