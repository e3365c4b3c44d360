"""TensorBoard event files, without TensorFlow."""

from collections.abc import Mapping
from pathlib import Path

from tensorboardX import SummaryWriter


class TensorBoard:
    """Scalars and text of one run; on resume, points after the restored step are purged.

    Without a folder nothing is written, as in all processes of a run but the first.
    """

    def __init__(self, folder: Path | None, resumed_step: int | None):
        purge = None if resumed_step is None else resumed_step + 1
        self._writer = SummaryWriter(
            str(folder), purge_step=purge, flush_secs=10, write_to_disk=folder is not None
        )

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        for tag, value in values.items():
            self._writer.add_scalar(tag, value, step)

    def text(self, tag: str, markdown: str) -> None:
        self._writer.add_text(tag, markdown, 0)

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
