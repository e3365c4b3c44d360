"""TensorBoard event files, without TensorFlow."""

import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensorboardX import summary
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary

from hyla_lm.sinks.protocol import Histogram, Hyperparameter

RGBA = 4  # tensorboard's number for the colours of an image


class TensorBoard:
    """Scalars, images and text of one run, on disk when a call returns.

    If `first` is given, points of earlier processes from that step on are purged. Without a folder
    nothing is written, as in all processes of a run but the first.
    """

    def __init__(self, folder: Path | None, first: int | None):
        self._events: EventsWriter | None = None
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            self._events = EventsWriter(str(folder / "events"))
        if first is not None:
            self._write(first, session_log=SessionLog(status=SessionLog.START))

    def hyperparameters(self, values: Mapping[str, Hyperparameter]) -> None:
        for content in summary.hparams(dict(values), {}):
            self._write(0, summary=content)
        self._flush()

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        for tag, value in values.items():
            self._write(step, summary=summary.scalar(tag, value))
        self._flush()

    def histogram(self, step: int, tag: str, values: Histogram) -> None:
        edge_N1 = values.edge_N1
        content = summary.histogram_raw(
            tag,
            float(edge_N1[0]),
            float(edge_N1[-1]),
            int(values.count_N.sum()),
            values.sum,
            values.sum_squares,
            edge_N1[1:].tolist(),
            values.count_N.tolist(),
        )
        self._write(step, summary=content)
        self._flush()

    def image(self, step: int, tag: str, png: bytes) -> None:
        width, height = struct.unpack(">II", png[16:24])  # the header begins so (PNG, IHDR)
        image = Summary.Image(width=width, height=height, colorspace=RGBA, encoded_image_string=png)
        self._write(step, summary=Summary(value=[Summary.Value(tag=tag, image=image)]))
        self._flush()

    def text(self, step: int, tag: str, markdown: str) -> None:
        self._write(step, summary=summary.text(tag, markdown))
        self._flush()

    def close(self) -> None:
        if self._events is not None:
            self._events.close()

    def _write(self, step: int, **content: Any) -> None:
        if self._events is not None:
            self._events.write_event(Event(wall_time=time.time(), step=step, **content))

    def _flush(self) -> None:
        if self._events is not None:
            self._events.flush()
