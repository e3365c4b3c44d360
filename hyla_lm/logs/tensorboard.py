"""TensorBoard event files, without TensorFlow.

Events are written in the loop and not by a thread with a queue, so that every point before a
checkpoint is on disk before it.
"""

import os
import socket
import struct
import time
from collections.abc import Iterable, Mapping
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
from tensorboard.plugins.text.metadata import create_summary_metadata as text_metadata
from tensorboard.summary.writer.record_writer import RecordWriter
from tensorboard.util.tensor_util import make_tensor_proto

from hyla_lm.logs.sinks import Histogram, Value, description

PREFIX = "events"  # of event files, which lie beside other files of a run
VERSION = Event(file_version="brain.Event:2")  # the first event of every file
# By the kind of a value: the plugin that shows it, and what its data is to TensorBoard's server.
PLUGINS = {
    "simple_value": ("scalars", DATA_CLASS_SCALAR),
    "histo": ("histograms", DATA_CLASS_TENSOR),
    "image": ("images", DATA_CLASS_BLOB_SEQUENCE),
}
RGBA = 4  # tensorboard's number for the colours of an image
# TensorBoard sorts by name, digits before letters: groups and metrics that are read first get a
# number.
GROUPS = ("train", "validation", "optim", "attention", "perf")
METRICS = ("loss_nats", "bits_per_byte")


class TensorBoard:
    """A sink: scalars, histograms, images and text of one run, on disk when a call returns.

    Tags have the names of `tensorboard_name`. Points of earlier processes from step `first` on are
    purged; the earlier ones must have said where they began too.
    """

    def __init__(self, folder: Path, first: int):
        folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads the files of a folder in the order of their names.
        name = f"{PREFIX}.out.tfevents.{time.time_ns()}.{socket.gethostname()}"
        self._file = (folder / name).open("xb")
        self._described: set[str] = set()
        started = Event(step=first, session_log=SessionLog(status=SessionLog.START))
        self._append([VERSION, started])

    def write(self, step: int, values: Mapping[str, Value]) -> None:
        self._append(
            Event(step=step, summary=Summary(value=[self._point(tag, value)]))
            for tag, value in values.items()
        )

    def close(self) -> None:
        self._file.close()

    def _append(self, events: Iterable[Event]) -> None:
        """Appends events of now, which are on disk when it returns."""
        records = RecordWriter(self._file)
        for event in events:
            event.wall_time = time.time()
            records.write(event.SerializeToString())
        self._file.flush()
        os.fsync(self._file.fileno())

    def _point(self, tag: str, value: Value) -> Summary.Value:
        """The first point of a tag carries its description."""
        point = _point(value)
        point.tag = tensorboard_name(tag)
        if tag not in self._described:
            self._described.add(tag)
            _describe(point, description(tag))
        return point


def tensorboard_name(tag: str) -> str:
    """The name of a tag in TensorBoard: train/loss_nats is 1_train/1_loss_nats."""
    group, slash, metric = tag.partition("/")
    return f"{_numbered(group, GROUPS)}{slash}{_numbered(metric, METRICS)}"


def _numbered(name: str, first: tuple[str, ...]) -> str:
    return f"{first.index(name) + 1}_{name}" if name in first else name


def _point(value: Value) -> Summary.Value:
    """A value as a plugin of TensorBoard reads it, without a tag."""
    if isinstance(value, Histogram):
        edge_N1 = value.edge_N1
        content = HistogramProto(
            min=edge_N1[0],
            max=edge_N1[-1],
            num=value.count_N.sum(),
            sum=value.sum,
            sum_squares=value.sum_squares,
            bucket_limit=edge_N1[1:],
            bucket=value.count_N,
        )
        return Summary.Value(histo=content)
    if isinstance(value, bytes):
        width, height = struct.unpack(">II", value[16:24])  # the header begins so (PNG, IHDR)
        return Summary.Value(
            image=Summary.Image(
                width=width, height=height, colorspace=RGBA, encoded_image_string=value
            )
        )
    if isinstance(value, str):
        metadata = text_metadata(display_name="", description="")
        return Summary.Value(tensor=make_tensor_proto([value]), metadata=metadata)
    return Summary.Value(simple_value=value)


def _describe(point: Summary.Value, sentence: str) -> None:
    """Adds a description; the server takes it only with a data class."""
    if not sentence or point.WhichOneof("value") not in PLUGINS:
        return
    plugin, data_class = PLUGINS[point.WhichOneof("value")]
    plugin_data = SummaryMetadata.PluginData(plugin_name=plugin)
    point.metadata.CopyFrom(
        SummaryMetadata(
            summary_description=sentence, data_class=data_class, plugin_data=plugin_data
        )
    )
