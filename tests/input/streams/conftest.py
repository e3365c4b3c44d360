"""Folders of documents in C4's two layouts."""

from pathlib import Path

import pytest

from hyla_lm.input.prepared import Rows
from hyla_lm.input.stream import C4Stream
from hyla_lm.input.tokenizer import Tokenizer
from tests.data.c4_layouts import write_array_records, write_json_gz
from tests.input.streams.reading import KINDS, SHARDS, TEXTS, source_of


@pytest.fixture(scope="session")
def tokenizer(tiny_rows: Rows) -> Tokenizer:
    return Tokenizer(tiny_rows.tokenizer)


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    home = tmp_path_factory.mktemp("c4")
    writers = {"json.gz": write_json_gz, "ArrayRecord": write_array_records}
    for kind, write in writers.items():
        write(TEXTS, home / kind, "train", SHARDS)
        write(TEXTS[:30], home / kind, "validation", 2)
    return {kind: home / kind for kind in KINDS}


@pytest.fixture(params=KINDS)
def source(
    request: pytest.FixtureRequest, folders: dict[str, Path], tokenizer: Tokenizer
) -> C4Stream:
    return source_of(folders[request.param], tokenizer.path)
