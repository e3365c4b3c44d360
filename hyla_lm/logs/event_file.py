"""A file of TensorBoard's events."""

import os
import socket
import time
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.summary.writer.record_writer import RecordWriter

VERSION = "brain.Event:2"  # of the format; TensorBoard looks for it in the first event


class EventFile:
    """Events in one new file; those written before a flush are on disk when it returns."""

    def __init__(self, path: Path):
        self._file = path.open("xb")
        self._records = RecordWriter(self._file)
        self.write(Event(file_version=VERSION))

    def write(self, event: Event) -> None:
        """Adds an event, which is of now."""
        event.wall_time = time.time()
        self._records.write(event.SerializeToString())

    def flush(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self.flush()
        self._file.close()


def file_of_now(folder: Path, prefix: str) -> Path:
    """The path of a new file; TensorBoard reads those of a folder in the order of their names."""
    return folder / f"{prefix}.out.tfevents.{time.time_ns()}.{socket.gethostname()}"
