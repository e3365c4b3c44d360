"""A command whose run takes a second once it is compiled."""

from pathlib import Path

import pytest

from hyla_lm.input.prepared import Rows
from tests.conftest import SEQUENCE_LENGTH, TINY
from tests.faults.runs import Command


@pytest.fixture
def command(tiny_rows: Rows, tmp_path: Path) -> Command:
    """Trains one tiny layer, with a cache of compiled programs of its own."""
    gin_file = tmp_path / "tiny.gin"
    gin_file.write_text(TINY.format(rows=tiny_rows, sequence_length=SEQUENCE_LENGTH))
    return Command(gin_file, tmp_path / "programs", ("ModelConfig.num_layers = 1",))
