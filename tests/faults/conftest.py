"""A command whose run takes a second once it is compiled."""

from pathlib import Path

import pytest

from hyla_lm.input.prepared import Rows
from tests.faults.runs import Command
from tests.tiny_runs import write_gin


@pytest.fixture
def command(tiny_rows: Rows, tmp_path: Path) -> Command:
    """Trains one tiny layer, with a cache of compiled programs of its own."""
    return Command(write_gin(tmp_path, tiny_rows), tmp_path / "programs")
