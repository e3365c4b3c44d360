"""Files on a disk or in a bucket: paths, whole sets of shards, retries, and atomic writes."""

import errno
import logging
import os
import random
import re
import stat
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from glob import glob
from itertools import chain, repeat
from pathlib import Path
from typing import Any, TypeVar

from etils import epath

from hyla_lm.ending import reason_of
from hyla_lm.errors import Unavailable, UserError, passes
from hyla_lm.package import install

T = TypeVar("T")
PathLike = str | os.PathLike[str]
CHUNK_BYTES = 8 << 20
RETRY_SECONDS = (1.0, 2.0, 5.0, 10.0, 30.0)
GIVE_UP_SECONDS = 600.0
ASKING_THREADS = 32
# "c4-train.00007-of-01024.json.gz" (AllenAI), "c4-train.array_record-00007-of-01024" (TFDS).
WILDCARD = re.compile(r"[*?\[]")
NUMBERED = re.compile(r"^(?P<stem>.*?)[.-](?P<index>\d{5})-of-(?P<count>\d{5})(?P<suffix>.*)$")
# epath would hand buckets to TensorFlow where that is installed; here they are always gcsfs's.
os.environ.setdefault("EPATH_USE_TF", "false")
_answered: set[str] = set()
log = logging.getLogger(__name__)


def as_path(path: PathLike) -> epath.Path:
    """A path of the local disk or of a bucket (gs://).

    Raises UserError for a bucket that has no client or cannot be used, and Unavailable for one that
    does not answer when first used.
    """
    bucket = bucket_of(path)
    if bucket and not bucket.startswith("gs://"):
        raise UserError(f"{path} is no path of a disk or of gs://: fetch it, and give the copy.")
    parsed = epath.Path(str(path)).expanduser()
    if parsed.parts[:1] == ("~",):
        raise UserError(f"{path} is in a home folder, and there is none: set HOME or give a path.")
    if bucket and bucket not in _answered:
        _ask(parsed)
        _answered.add(bucket)
    return parsed


def bucket_of(path: PathLike) -> str:
    """The bucket of a path, such as gs://c4; empty for the local disk."""
    text = str(path)
    return "/".join(text.split("/")[:3]) if "://" in text else ""


@contextmanager
def bucket_errors(path: PathLike) -> Iterator[None]:
    """Turns the own exceptions of a bucket's client into OSError."""
    try:
        yield
    except (OSError, ImportError, UserError):
        raise
    except Exception as error:
        if bucket_of(path):
            raise OSError(f"{type(error).__name__}: {error}") from error
        raise


@contextmanager
def storage_errors(path: PathLike, done: str, advice: str) -> Iterator[None]:
    """Turns errors of a disk or of a bucket's client into UserError: PATH cannot be DONE."""
    try:
        with bucket_errors(path):
            yield
    except OSError as error:
        reason = error.strerror or reason_of(error)
        if passes(error):
            raise Unavailable(f"{path} cannot be {done} now ({reason}): start again.") from error
        raise UserError(f"{path} cannot be {done} ({reason}): {advice}.") from error


def _ask(path: epath.Path) -> None:
    try:
        import fsspec

        # A cached listing would hide files that other processes write to the same folder.
        fsspec.config.conf.setdefault("gcs", {}).setdefault("use_listings_cache", False)
        with bucket_errors(path):
            path.exists()
    except ImportError as error:
        raise UserError(f"{path} needs a bucket client: {install('gcs')}.") from error
    except OSError as error:
        raise (Unavailable if passes(error) else UserError)(
            f"{path} cannot be reached ({error}): check the path, the network and the credentials "
            "(gcloud auth application-default login)."
        ) from error


def check_bucket_access(path: PathLike) -> None:
    """Asks for the bucket itself, as Orbax does; raises UserError where that is refused."""
    from google.cloud import storage

    bucket = bucket_of(path)
    try:
        storage.Client().get_bucket(bucket.removeprefix("gs://"))
    except Exception as error:
        raise (Unavailable if passes(error) else UserError)(
            f"{bucket} cannot be looked at ({error}), which Orbax does to keep checkpoints in it: "
            "make the bucket, give this account roles/storage.legacyBucketReader on it, "
            "and set GOOGLE_CLOUD_PROJECT where no project is known."
        ) from error


def list_files(patterns: Sequence[str], what: str) -> tuple[str, ...]:
    """The files of paths and globs, each once; raises UserError for none or missing shards.

    The name of a file is that file, also with brackets; only others are globs, `**` for any folders
    (on a disk).
    A glob over the whole shard number must match every shard. To take some shards, give their
    first digits ("c4-train.0000*") or name the files. `what` names the setting in errors.
    """
    listed: list[str] = []
    for pattern in patterns:
        with storage_errors(f"{what} = {pattern}", "listed", "correct the path"):
            path = as_path(pattern)
            if size_of(path) is not None:
                listed.append(str(path))
                continue
            files = _matches(path) if WILDCARD.search(str(path)) else []
        if not files:
            raise UserError(f"{what} = {pattern} matches no file: correct the path.")
        _check_complete(files, pattern, what)
        listed += files
    return tuple(dict.fromkeys(listed))


def _matches(path: epath.Path) -> list[str]:
    """The files that match a path, whose folders that exist are names, whatever signs they hold."""
    base, pattern = path.parent, path.name
    if bucket_of(path):
        return sorted(map(str, base.glob(pattern)))
    while not base.exists():
        base, pattern = base.parent, f"{base.name}/{pattern}"
    return sorted(str(base / found) for found in glob(pattern, root_dir=base, recursive=True))


def _check_complete(files: Sequence[str], pattern: str, what: str) -> None:
    wildcard = WILDCARD.search(pattern)
    sets: dict[tuple[str, str, int], set[int]] = {}
    for match in filter(None, map(NUMBERED.match, files)):
        key = (match["stem"], match["suffix"], int(match["count"]))
        sets.setdefault(key, set()).add(int(match["index"]))
    for (stem, suffix, count), indices in sets.items():
        is_subset = wildcard is None or wildcard.start() > len(stem) + 1
        missing = sorted(set(range(count)) - indices)
        if missing and not is_subset:
            raise UserError(
                f"{what}: shard {missing[0]:05d} of the {count} of {stem}*{suffix} is missing "
                f"({len(indices)} are there): fetch it, or name the files you want."
            )


def sizes(paths: Sequence[PathLike]) -> list[int | None]:
    """The size of each file in bytes, read in parallel; None for a missing file."""
    with ThreadPoolExecutor(min(len(paths), ASKING_THREADS) or 1) as pool:
        return list(pool.map(size_of, paths))


def names_and_sizes(files: Sequence[str]) -> list[str]:
    """A line "name size" for each file; together they identify the text."""
    return [f"{as_path(f).name} {size}" for f, size in zip(files, sizes(files), strict=True)]


def size_of(path: PathLike) -> int | None:
    """The size of a file in bytes; None if it is missing. Raises UserError if the store fails.

    What is no regular file, such as a pipe or a device, counts as missing: it may never end.
    """
    status = _status(path)
    if status is None:
        return None
    is_special = status.mode is not None and not stat.S_ISREG(status.mode)
    return None if status.is_directory or is_special else status.length


def exists(path: PathLike) -> bool:
    """Whether there is a file or folder; raises UserError if the store fails."""
    return _status(path) is not None


def _status(path: PathLike) -> Any:
    """What etils' `stat` gives of a file or folder; None if it is missing."""
    try:
        return retrying(as_path(path).stat, path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def read_whole(path: PathLike) -> bytes | None:
    """A file's bytes; None if it is missing. Raises UserError if the store fails."""
    return None if size_of(path) is None else b"".join(chunks(as_path(path)))


def text_of(content: bytes, name: str) -> str:
    """A text as every reader takes it: UTF-8, without byte order mark and with LF for CRLF.

    Raises UserError for other bytes.
    """
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{name} is not UTF-8 at byte {error.start:,}: convert it.") from error
    return text.removeprefix("\ufeff").replace("\r\n", "\n")


def pieces(path: PathLike) -> Iterator[bytes]:
    """A file's bytes in order, read in pieces; none if it is missing. Errors as of `read_whole`."""
    return iter(()) if size_of(path) is None else chunks(as_path(path))


@contextmanager
def written_aside(path: PathLike) -> Iterator[Path]:
    """A local file to write, which appears as `path`, whole, when the block ends.

    An error in the block removes it. It lies beside `path`, or in the temporary folder if `path`
    is in a bucket. Its bytes are on the disk before its name is, so that a name never holds less
    than the file, also after a power cut.
    """
    place = as_path(path)
    folder = Path(tempfile.gettempdir()) if bucket_of(path) else Path(place.parent)
    aside = folder / f".{place.name}.{uuid.uuid4().hex}.partial"
    try:
        yield aside
        if bucket_of(path):
            write_whole(path, aside.read_bytes())
        else:
            _sync(aside)
            aside.replace(place)
            with suppress(OSError):  # some file systems cannot sync a folder
                _sync(place.parent)
    finally:
        aside.unlink(missing_ok=True)


def _sync(path: PathLike) -> None:
    """Returns when what was written to a file or folder is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_whole(path: PathLike, content: bytes) -> None:
    """Writes a file that appears whole or not at all; raises UserError if it cannot be written."""

    def write() -> None:
        if bucket_of(path):  # an object always appears whole
            as_path(path).write_bytes(content)
            return
        as_path(path).parent.mkdir(exist_ok=True)
        with written_aside(path) as aside:
            aside.write_bytes(content)

    with storage_errors(path, "written", "make room or give another folder"):
        retrying(write, path, "written")


def append(path: Path, content: bytes) -> None:
    """Appends to a local file, on the disk when it returns; what a try wrote that failed is cut.

    Raises UserError if it cannot be written.
    """

    def write() -> None:
        with path.open("ab") as file:
            file.truncate(size)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())

    with storage_errors(path, "written", "make room or give another folder"):
        size = size_of(path) or 0
        retrying(write, path, "written")


def chunks(path: epath.Path) -> Iterator[bytes]:
    """A file's bytes in order; a read that fails is tried again from where it stopped."""
    offset = 0
    while chunk := retrying(partial(_read_at, path, offset), path):
        offset += len(chunk)
        yield chunk


def _read_at(path: epath.Path, offset: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        if (content := file.read(CHUNK_BYTES)) is None:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return content


def retrying(
    action: Callable[[], T], path: PathLike, done: str = "read", is_patient: bool = True
) -> T:
    """What an action on a file gives, tried again after growing waits while its error may pass.

    Raises any other error, and Unavailable after GIVE_UP_SECONDS, or at once if not `is_patient`.
    A client that has tried for so long itself, as array_record's does, is not asked again.
    """
    tried_until = time.monotonic() + (GIVE_UP_SECONDS if is_patient else 0)
    for wait in chain(RETRY_SECONDS, repeat(RETRY_SECONDS[-1])):
        try:
            with bucket_errors(path):
                return action()
        except Exception as error:
            if isinstance(error, UserError) or not passes(error):
                raise
            reason = reason_of(error)
            if time.monotonic() + wait > tried_until:
                raise Unavailable(
                    f"{path} cannot be {done} now ({reason}): start again when the storage answers."
                ) from error
        log.warning("%s cannot be %s now (%s): trying again in %g s", path, done, reason, wait)
        time.sleep(random.uniform(wait / 2, wait))
    raise AssertionError("the waits do not end")
