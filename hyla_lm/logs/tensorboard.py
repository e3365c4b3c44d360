"""TensorBoard event files, without TensorFlow.

Events are written in the loop and not by a thread with a queue, so that every point before a
checkpoint is on disk before it.
"""

import os
import re
import socket
import struct
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import (
    DATA_CLASS_BLOB_SEQUENCE,
    DATA_CLASS_SCALAR,
    DATA_CLASS_TENSOR,
    HistogramProto,
    Summary,
    SummaryMetadata,
)
from tensorboard.plugins.custom_scalar import layout_pb2 as layout
from tensorboard.plugins.custom_scalar import metadata as charts
from tensorboard.plugins.hparams import api_pb2 as hparams
from tensorboard.plugins.hparams.metadata import (
    EXPERIMENT_TAG,
    NULL_TENSOR,
    SESSION_START_INFO_TAG,
)
from tensorboard.plugins.hparams.metadata import create_summary_metadata as hparams_metadata
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionStartInfo
from tensorboard.plugins.text.metadata import create_summary_metadata as text_metadata
from tensorboard.summary.writer.record_writer import RecordWriter
from tensorboard.util.tensor_util import make_tensor_proto

from hyla_lm.logs.sinks import TAGS, Histogram, Setting, Value, description
from hyla_lm.storage import written_aside

PREFIX = "events"  # of event files, which lie beside other files of a run
SETTINGS = f"{PREFIX}.out.tfevents.0.settings"  # read before the other files, which have the time
VERSION = Event(file_version="brain.Event:2")  # the first event of every file
BEFORE_ALL = -1  # a process that begins at step 0 purges what others wrote from 0 on
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
# The table of HParams shows so many settings unless asked for more: those that differ first.
COLUMNS = 5
METRIC_COLUMNS = {
    "validation/loss_nats": "validation loss (nats)",
    "validation/bits_per_byte": "validation bits per byte",
    "perf/tokens_per_second": "tokens per second",
}


class TensorBoard:
    """A sink: scalars, histograms, images and text of one run, on disk when a call returns.

    Tags have the names of `tensorboard_name`. Points of earlier processes from step `first` on are
    purged; the earlier ones must have said where they began too. `settings` replace those of
    earlier processes, in a separate file.
    """

    def __init__(self, folder: Path, first: int, settings: Mapping[str, Setting] | None = None):
        folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads the files of a folder in the order of their names.
        name = f"{PREFIX}.out.tfevents.{time.time_ns()}.{socket.gethostname()}"
        self._file = (folder / name).open("xb")
        self._described: set[str] = set()
        started = Event(step=first, session_log=SessionLog(status=SessionLog.START))
        _append(self._file, [VERSION, started])
        if settings:
            with written_aside(folder / SETTINGS) as aside, aside.open("xb") as file:
                _append(file, [VERSION, *_settings_events(settings)])

    def write(self, step: int, values: Mapping[str, Value]) -> None:
        _append(
            self._file,
            [
                Event(step=step, summary=Summary(value=[self._point(tag, value)]))
                for tag, value in values.items()
            ],
        )

    def close(self) -> None:
        self._file.close()

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


def _append(file: BinaryIO, events: Iterable[Event]) -> None:
    """Appends events of now, which are on disk when it returns."""
    records = RecordWriter(file)
    for event in events:
        event.wall_time = time.time()
        records.write(event.SerializeToString())
    file.flush()
    os.fsync(file.fileno())


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


def _settings_events(settings: Mapping[str, Setting]) -> Iterator[Event]:
    """The settings by which runs are compared, the metrics to show beside them, and the charts."""
    of_run = SessionStartInfo()
    for name, value in settings.items():
        setattr(of_run.hparams[name], _kind(value)[1], value)
    for tag, data in (
        (EXPERIMENT_TAG, HParamsPluginData(experiment=_columns(settings))),
        (SESSION_START_INFO_TAG, HParamsPluginData(session_start_info=of_run)),
    ):
        metadata = hparams_metadata(data)
        yield _setting_event(Summary.Value(tag=tag, tensor=NULL_TENSOR, metadata=metadata))
    tensor = make_tensor_proto(_charts().SerializeToString())
    metadata = charts.create_summary_metadata()
    yield _setting_event(
        Summary.Value(tag=charts.CONFIG_SUMMARY_TAG, tensor=tensor, metadata=metadata)
    )


def _setting_event(value: Summary.Value) -> Event:
    return Event(step=BEFORE_ALL, summary=Summary(value=[value]))


def _columns(settings: Mapping[str, Setting]) -> hparams.Experiment:
    """Columns of the table of runs: settings, the first marked as different, and metrics."""
    return hparams.Experiment(
        hparam_infos=[
            hparams.HParamInfo(name=name, type=_kind(value)[0], differs=number < COLUMNS)
            for number, (name, value) in enumerate(settings.items())
        ],
        metric_infos=[
            hparams.MetricInfo(
                name=hparams.MetricName(tag=tensorboard_name(tag)), display_name=name
            )
            for tag, name in METRIC_COLUMNS.items()
        ],
    )


def _kind(value: Setting) -> tuple[int, str]:
    """The type of a setting in the table, and the field that holds it."""
    if isinstance(value, bool):
        return hparams.DATA_TYPE_BOOL, "bool_value"
    if isinstance(value, str):
        return hparams.DATA_TYPE_STRING, "string_value"
    return hparams.DATA_TYPE_FLOAT64, "number_value"


def _charts() -> layout.Layout:
    """The charts of several curves, by section, as the table of tags names them."""
    curves: dict[str, dict[str, list[str]]] = {}
    for row in TAGS:
        section, _, title = row.chart.partition(": ")
        if title:
            pattern = ".*".join(map(re.escape, tensorboard_name(row.pattern).split("*")))
            curves.setdefault(section, {}).setdefault(title, []).append(f"^{pattern}$")
    return layout.Layout(
        category=[
            layout.Category(
                title=section,
                chart=[
                    layout.Chart(title=title, multiline=layout.MultilineChartContent(tag=patterns))
                    for title, patterns in titles.items()
                ],
            )
            for section, titles in curves.items()
        ]
    )
