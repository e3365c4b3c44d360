"""Files of a disk or a bucket: one path layer, shard names that are whole sets, bounded retries."""

import os
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import TypeVar

from etils import epath

from hyla_lm.config import UserError

T = TypeVar("T")
PathLike = str | os.PathLike[str]
CHUNK_BYTES = 8 << 20
FIRST_WAIT_SECONDS = 0.5
LONGEST_WAIT_SECONDS = 30.0
# "c4-train.00007-of-01024.json.gz" (AllenAI), "c4-train.array_record-00007-of-01024" (TFDS).
WILDCARD = re.compile(r"[*?\[]")
NUMBERED = re.compile(r"^(?P<stem>.*?)[.-](?P<index>\d{5})-of-(?P<count>\d{5})(?P<suffix>.*)$")


def as_path(path: PathLike) -> epath.Path:
    """A path of the local disk or of a bucket (gs://); raises UserError without a bucket client."""
    text = str(path)
    try:
        parsed = epath.Path(text)
        if "://" in text:
            parsed.exists()
        return parsed.expanduser()
    except ImportError as error:
        raise UserError(f"{text} needs a bucket client: pip install 'hyla_lm[gcs]'.") from error


def list_files(patterns: Sequence[str], what: str) -> tuple[str, ...]:
    """The sorted files of paths and globs; raises UserError for none, repeats or missing shards.

    A glob that covers the shard number must find every shard; to take some of them, let the
    pattern begin with digits ("c4-train.0000*") or name the files.
    """
    found: list[str] = []
    for pattern in patterns:
        files = _matching(pattern)
        if not files:
            raise UserError(f"{what} = {pattern} matches no file: correct the path.")
        _check_complete(files, pattern, what)
        found += files
    for file, following in pairwise(sorted(found)):
        if file == following:
            raise UserError(f"{what} names {file} twice: name each file once.")
    return tuple(found)


def _matching(pattern: str) -> list[str]:
    path = as_path(pattern)
    if WILDCARD.search(path.name):
        return sorted(str(file) for file in path.parent.glob(path.name))
    return [str(path)] if path.is_file() else []


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


def chunks(path: epath.Path, attempts: int) -> Iterator[bytes]:
    """A file's bytes in order; a read that fails is tried again from where it stopped."""
    offset = 0
    while chunk := retrying(partial(_read_at, path, offset), attempts, str(path)):
        offset += len(chunk)
        yield chunk


def _read_at(path: epath.Path, offset: int) -> bytes:
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(CHUNK_BYTES)


def retrying(
    action: Callable[[], T],
    attempts: int,
    what: str,
    errors: tuple[type[Exception], ...] = (OSError,),
) -> T:
    """The action's result, tried up to `attempts` times with growing, jittered waits."""
    for attempt in range(1, attempts + 1):
        try:
            return action()
        except (FileNotFoundError, PermissionError):
            raise
        except errors as error:
            if attempt == attempts:
                raise UserError(
                    f"{what} could not be read in {attempts} tries ({error}): check the storage "
                    "and start again, or raise LanguageModel.read_attempts."
                ) from error
            longest = min(LONGEST_WAIT_SECONDS, FIRST_WAIT_SECONDS * 2**attempt)
            time.sleep(random.uniform(longest / 2, longest))
    raise AssertionError("attempts is at least 1")
