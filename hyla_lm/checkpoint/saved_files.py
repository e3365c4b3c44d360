"""What a run notes of its saved checkpoints: the newest step, and the files of each, as they were.

The file is written when a save has ended. It tells when all checkpoints are gone, and when a file
has changed that a restore does not read.
"""

import json
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import Any

from etils import epath

from hyla_lm.storage import bucket_of, read_whole

NAME = ".saved"
LARGEST_READ_BYTES = 8 << 20  # larger files hold arrays, which have checksums of their own


def note(workdir: epath.Path, step: int, kept: Collection[int]) -> str:
    """The content of the note once this step is saved and these are kept."""
    before = _read(workdir)["files"]
    files = {str(known): before[str(known)] for known in kept if str(known) in before}
    if not bucket_of(workdir):
        files[str(step)] = _fingerprints(Path(workdir) / "checkpoints" / str(step))
    return json.dumps({"step": step, "files": files}) + "\n"


def newest_noted(workdir: epath.Path) -> int | None:
    """The newest step that is known to have been saved whole."""
    return _read(workdir)["step"]


def changed_files(workdir: epath.Path, step: int) -> list[str]:
    """The files of a checkpoint that are not as they were when its save ended."""
    noted = _read(workdir)["files"].get(str(step))
    if noted is None:
        return []
    found = _fingerprints(Path(workdir) / "checkpoints" / str(step))
    return sorted(name for name in {*noted, *found} if noted.get(name) != found.get(name))


def told_of_changes(workdir: epath.Path, step: int) -> str:
    """A sentence on files that have changed although all that was read is whole; or nothing."""
    changed = changed_files(workdir, step)
    if not changed:
        return ""
    where = f"{workdir / 'checkpoints' / str(step)}: {', '.join(changed)}"
    return f"{where} changed since the save, but not what a restore reads: look at the disk"


def _read(workdir: epath.Path) -> dict[str, Any]:
    """The note; one that is missing or damaged knows nothing."""
    nothing: dict[str, Any] = {"step": None, "files": {}}
    try:
        found = json.loads(read_whole(workdir / NAME) or b"{}")
    except (ValueError, RecursionError):
        return nothing
    is_note = isinstance(found, dict) and isinstance(found.get("files"), dict)
    return found if is_note and isinstance(found.get("step"), int) else nothing


def _fingerprints(folder: Path) -> dict[str, list[int]]:
    """Size and, of files that are not large, CRC-32 by the path in the folder."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): _fingerprint(path) for path in paths}


def _fingerprint(path: Path) -> list[int]:
    size = path.stat().st_size
    return [size] if size > LARGEST_READ_BYTES else [size, zlib.crc32(path.read_bytes())]
