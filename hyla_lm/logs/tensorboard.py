"""TensorBoard event files, without TensorFlow.

Events are written in the loop and not by a thread with a queue, so that every point before a
checkpoint is on disk before it.
"""

import socket
import struct
import time
from collections.abc import Iterable, Mapping
from io import BytesIO
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.text.metadata import create_summary_metadata as text_metadata
from tensorboard.summary.writer.record_writer import RecordWriter
from tensorboard.util.tensor_util import make_tensor_proto

from hyla_lm.logs.sinks import Value
from hyla_lm.storage import append

PREFIX = "events"  # of event files, which lie beside other files of a run
VERSION = Event(file_version="brain.Event:2")  # the first event of every file
RGBA = 4  # tensorboard's number for the colours of an image


class TensorBoard:
    """A sink: scalars, images and text of one run, on disk when a call returns.

    Points of earlier processes from step `first` on are purged; the earlier ones must have said
    where they began too.
    """

    def __init__(self, folder: Path, first: int):
        folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads the files of a folder in the order of their names.
        name = f"{PREFIX}.out.tfevents.{time.time_ns()}.{socket.gethostname()}"
        self._path = folder / name
        started = Event(step=first, session_log=SessionLog(status=SessionLog.START))
        self._append([VERSION, started])

    def write(self, step: int, values: Mapping[str, Value]) -> None:
        self._append(
            Event(step=step, summary=Summary(value=[_point(tag, value)]))
            for tag, value in values.items()
        )

    def close(self) -> None:
        """Nothing is open between two calls."""

    def _append(self, events: Iterable[Event]) -> None:
        """Appends events of now, which are on disk when it returns."""
        content = BytesIO()
        records = RecordWriter(content)
        for event in events:
            event.wall_time = time.time()
            records.write(event.SerializeToString())
        append(self._path, content.getvalue())


def _point(tag: str, value: Value) -> Summary.Value:
    """A value as a plugin of TensorBoard reads it."""
    if isinstance(value, bytes):
        width, height = struct.unpack(">II", value[16:24])  # the header begins so (PNG, IHDR)
        image = Summary.Image(
            width=width, height=height, colorspace=RGBA, encoded_image_string=value
        )
        return Summary.Value(tag=tag, image=image)
    if isinstance(value, str):
        metadata = text_metadata(display_name="", description="")
        return Summary.Value(tag=tag, tensor=make_tensor_proto([value]), metadata=metadata)
    return Summary.Value(tag=tag, simple_value=value)
