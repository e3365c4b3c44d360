"""Files that appear whole."""

import os
from pathlib import Path

import pytest

from hyla_lm.storage import write_whole


def test_a_name_appears_when_its_bytes_are_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, synced = tmp_path / "summary.json", []

    def fsync(descriptor: int) -> None:
        synced.append((Path(f"/proc/self/fd/{descriptor}").readlink(), path.exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    write_whole(path, b"{}")
    (aside, named_before), (folder, named_after) = synced
    assert aside.suffix == ".partial" and not named_before
    assert folder == tmp_path and named_after
