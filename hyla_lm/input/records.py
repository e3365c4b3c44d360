"""Random access to the records of ArrayRecord files on a disk or in a bucket."""

import resource
from bisect import bisect_right
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from typing import Any, SupportsIndex

from array_record.python.array_record_module import ArrayRecordReader

from hyla_lm.errors import UserError
from hyla_lm.storage import retrying

OPTIONS = "readahead_buffer_size:0,max_parallelism:0"
BUFFER_BYTES = 32_768
OPENING_THREADS = 32
FILES_BESIDES = 512


class Records:
    """All records of some files as one sequence, picklable for worker processes.

    Raises UserError, naming the file, for one that is damaged or cannot be read.
    """

    def __init__(self, files: Sequence[str], attempts: int = 1):
        self.files, self._attempts = tuple(files), attempts
        self._open()

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: SupportsIndex) -> bytes:
        file, place = self.locate(int(index))
        reader = self._readers[file]
        return self._try(lambda: reader.read(place, place + 1)[0], file, place)

    def locate(self, index: int) -> tuple[int, int]:
        """The file that holds a record, and the record's place in it."""
        if not 0 <= index < len(self):
            raise IndexError(f"record {index} of {len(self)}")
        file = bisect_right(self._ends, index)
        return file, index - (self._ends[file - 1] if file else 0)

    def counts(self) -> list[int]:
        """Records of each file."""
        return [reader.num_records() for reader in self._readers]

    def first_of_each(self) -> list[bytes]:
        """The first record of each file."""
        starts = [end - count for end, count in zip(self._ends, self.counts(), strict=True)]
        with ThreadPoolExecutor(min(len(self.files), OPENING_THREADS)) as pool:
            return list(pool.map(self.__getitem__, starts))

    def _open(self) -> None:
        _allow_open_files(len(self.files))
        with ThreadPoolExecutor(min(len(self.files), OPENING_THREADS)) as pool:
            self._readers = list(pool.map(self._open_file, range(len(self.files))))
        self._ends = list(accumulate(self.counts()))

    def _open_file(self, file: int) -> ArrayRecordReader:
        reader = self._try(lambda: _reader(self.files[file]), file, None)
        if reader.num_records() == 0:
            raise UserError(f"{self.files[file]} holds no records: copy the shard again.")
        return reader

    def _try(self, action: Callable[[], Any], file: int, place: int | None) -> Any:
        """Retries in a bucket: ArrayRecord raises RuntimeError for damage and network alike."""
        path = self.files[file]
        if "://" in path:
            errors = (OSError, RuntimeError)
            return retrying(action, self._attempts, path, errors)
        try:
            return action()
        except (OSError, RuntimeError) as error:
            reason = str(error).strip().partition("\n")[0]
            what = "it" if place is None else f"record {place}"
            raise UserError(
                f"{path}: {what} is damaged ({reason}): copy the shard again."
            ) from error

    def __getstate__(self) -> dict[str, Any]:
        return {"files": self.files, "_attempts": self._attempts}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()


def _reader(path: str) -> ArrayRecordReader:
    reader = ArrayRecordReader(path, OPTIONS, file_reader_buffer_size=BUFFER_BYTES)
    if not reader.ok():
        reader.read([0])  # raises the reason
    return reader


def _allow_open_files(count: int) -> None:
    """Raises this process's soft limit of open files if needed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + FILES_BESIDES
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise UserError(f"{count} files need `ulimit -n {needed}`, but the limit here is {hard}.")
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
