"""What a run reads, mutated at random: it is taken as it was, or refused in one sentence."""

import json
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gin
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hyla_lm.config.gin_files import Written
from hyla_lm.config.read_experiment import read_experiment
from hyla_lm.errors import UserError
from hyla_lm.input.manifest import Manifest, read_manifest, shard_hashes, verify_shard
from hyla_lm.input.prepared import Rows
from hyla_lm.input.rows import RowReader
from hyla_lm.input.source import Reading
from tests.conftest import SEQUENCE_LENGTH

pytestmark = pytest.mark.usefixtures("programs_once")

# A machine under load is slow, and every example has the same folder, which it writes itself.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

NUMBERS = st.integers() | st.integers(-(2**70), 2**70) | st.just(10**400) | st.floats()
SCALARS = st.none() | st.booleans() | NUMBERS | st.text(max_size=8)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
EDITS = st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 255)), min_size=1, max_size=4)


def refused(action: Callable[[], object]) -> bool:
    """Whether an action raises UserError, in one sentence of one line."""
    try:
        action()
    except UserError as error:
        sentence = str(error)
        assert sentence.endswith(".") and len(sentence.splitlines()) == 1, sentence
        return True
    return False


def edited(content: bytes, edits: list[tuple[int, int]]) -> bytes:
    """The content with some bytes changed."""
    changed = bytearray(content)
    for place, mask in edits:
        changed[place % len(content)] ^= mask
    return bytes(changed)


@pytest.fixture(scope="module")
def copied(tiny_rows: Rows, tmp_path_factory: pytest.TempPathFactory) -> Rows:
    """A copy of the rows whose files the examples replace."""
    home = tmp_path_factory.mktemp("fuzz") / "rows"
    shutil.copytree(Path(tiny_rows.train).parent, home)
    return Rows(str(home / "train"), str(home / "validation"), tiny_rows.tokenizer)


@pytest.fixture(scope="module")
def whole(tiny_rows: Rows) -> dict[str, np.ndarray]:
    """All training rows."""
    manifest = read_manifest(tiny_rows.train)
    return RowReader(tiny_rows.train, manifest).read(range(manifest.rows))


def opened(rows: Rows) -> tuple[RowReader, Manifest]:
    """The training rows, opened and verified."""
    rows.open(SEQUENCE_LENGTH, 8, Reading())
    manifest = read_manifest(rows.train)
    for path, sha256 in shard_hashes(rows.train, manifest).items():
        verify_shard(path, sha256)
    return RowReader(rows.train, manifest), manifest


def check_manifest_text(rows: Rows, whole: dict[str, np.ndarray], text: bytes) -> None:
    """A manifest is refused, or its rows are those that it had before."""
    Path(rows.train, "manifest.json").write_bytes(text)

    def read_all() -> None:
        reader, _ = opened(rows)
        found = reader.read(range(len(reader)))
        assert all(np.array_equal(found[name], whole[name]) for name in whole)

    refused(read_all)


@patient
@given(place=st.integers(0, 100), value=VALUES, is_dropped=st.booleans(), more=st.text(max_size=4))
@example(place=4, value=10**4300, is_dropped=False, more="")
def test_a_manifest_with_other_values(
    copied: Rows,
    tiny_rows: Rows,
    whole: dict[str, np.ndarray],
    place: int,
    value: Any,
    is_dropped: bool,
    more: str,
) -> None:
    fields = json.loads(Path(tiny_rows.train, "manifest.json").read_text())
    places = [(fields, name) for name in fields]
    places += [(shard, name) for shard in fields["shards"] for name in shard]
    part, name = places[place % len(places)]
    if is_dropped:
        del part[name]
    else:
        part[name + more] = value
    try:
        text = json.dumps(fields).encode()
    except ValueError:  # Python writes no number of more than 4300 digits
        text = json.dumps(fields, default=str).encode() if is_dropped else b"1" * 5000
    check_manifest_text(copied, whole, text)


@patient
@given(edits=EDITS, shard=st.integers(0, 2), is_cut=st.booleans())
def test_a_shard_with_other_bytes(
    copied: Rows,
    tiny_rows: Rows,
    whole: dict[str, np.ndarray],
    edits: list[tuple[int, int]],
    shard: int,
    is_cut: bool,
) -> None:
    """Its SHA-256 tells always, its reader of every row that would be another."""
    manifest = read_manifest(tiny_rows.train)
    shutil.copy(Path(tiny_rows.train, "manifest.json"), copied.train)
    name = manifest.shards[shard].name
    content = Path(tiny_rows.train, name).read_bytes()
    changed = edited(content, edits)[: edits[0][0] if is_cut else None]
    Path(copied.train, name).write_bytes(changed)
    try:
        path, sha256 = f"{copied.train}/{name}", manifest.shards[shard].sha256
        assert refused(lambda: verify_shard(path, sha256)) == (changed != content)
        first = sum(one.rows for one in manifest.shards[:shard])

        def read_all() -> None:
            reader = RowReader(copied.train, manifest)
            for row in range(first, first + manifest.shards[shard].rows):
                refused(partial(check_row, reader, row))

        def check_row(reader: RowReader, row: int) -> None:
            found = reader.read([row])
            assert all(np.array_equal(found[name][0], whole[name][row]) for name in whole)

        refused(read_all)
    finally:
        shutil.copy(Path(tiny_rows.train, name), copied.train)


WORDS = st.sampled_from(
    [
        *("TrainConfig", "LanguageModel", "ModelConfig", "Rows", "C4Stream", "gin.singleton"),
        *("steps", "batch_size", "task", "data", "train", "attention", "constructor", "value"),
        *("import ", "from ", "include ", "as ", "stranger", "hyla_lm.input", "__gin__", "a/"),
        *("@", "%", "()", "(", ")", "[", "]", "{", "}", ",", ":", "=", " = ", ".", "/", "-", "#"),
        *("12", "1e400", "0x", "1_0", "True", "None", "'hyla'", '"', "'", "'''", "\\", "b'a'"),
        *("\n", "\n  ", "\t", "\r", "\0", "\f", "é", "\u2028", "$", "?", "\ud800"),
        *("STEPS", "STEPS = %STEPS\n", "9" * 5000, "(" * 200, "{[]: 1}", "lambda", "..."),
    ]
)
GIN = st.text(max_size=40) | st.lists(WORDS, max_size=12).map("".join)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    assert not gin.config._CONFIG and not gin.config._IMPORTS


@patient
@given(text=GIN, first=st.booleans())
@example(text="STEPS = %STEPS\nTrainConfig.steps = %STEPS", first=False)
@example(text="TrainConfig.task = @TrainConfig()", first=False)
@example(text="(" * 5000, first=True)
def test_a_config_of_any_text(tiny_gin: Path, text: str, first: bool) -> None:
    tiny = tiny_gin.read_text()
    for lines in ([text], [text, tiny] if first else [tiny, text]):
        refused(lambda lines=lines: read_experiment([Written("config.gin", "\n".join(lines))], []))
