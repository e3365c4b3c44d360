"""Mixtures of row folders: what is read, by how many processes, what is refused, and a run."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from hyla_lm.data.preparation import write_rows
from hyla_lm.data.train_tokenizer import train_tokenizer
from hyla_lm.errors import UserError
from hyla_lm.input.manifest import read_manifest
from hyla_lm.input.mixture import RowMixture
from hyla_lm.input.prepared import Rows
from hyla_lm.input.row_stream import evaluation_rows
from hyla_lm.input.source import LanguageData, Reading
from hyla_lm.input.tokenizer import Tokenizer
from hyla_lm.parallel.sharding import BatchShard
from hyla_lm.run.evaluation import read_documents
from tests.conftest import SEQUENCE_LENGTH, VOCAB_SIZE, sentences
from tests.run_lines import measured
from tests.tiny_runs import train, write_gin

pytestmark = pytest.mark.usefixtures("programs_once")

BATCH, BATCHES = 8, 90
PLAIN = Reading()


@pytest.fixture(scope="module")
def books(tiny_rows: Rows, tmp_path_factory: pytest.TempPathFactory) -> Rows:
    """A source of fewer rows than tiny_rows, of the same tokenizer."""
    home = tmp_path_factory.mktemp("books")
    return written(home, Tokenizer(tiny_rows.tokenizer), seed=700)


def written(home: Path, tokenizer: Tokenizer, seed: int) -> Rows:
    for split, first, count in (("train", seed, 30), ("validation", seed + 30, 4)):
        write_rows(
            [sentences(seed, 4) for seed in range(first, first + count)],
            tokenizer,
            home / split,
            split=split,
            source=home.name,
            sequence_length=SEQUENCE_LENGTH,
            seed=0,
        )
    return Rows(str(home / "train"), str(home / "validation"), tokenizer.path)


def mixed(*rows: Rows, weights: Sequence[float] = (3, 1)) -> RowMixture:
    return RowMixture(rows, ("web", "books", "third")[: len(rows)], tuple(weights))


def opened(mixture: RowMixture, reading: Reading = PLAIN) -> LanguageData:
    return mixture.open(SEQUENCE_LENGTH, BATCH, reading)


@pytest.fixture(scope="module")
def mixture(tiny_rows: Rows, books: Rows) -> RowMixture:
    return mixed(tiny_rows, books)


@pytest.fixture(scope="module")
def expected(mixture: RowMixture) -> dict[str, np.ndarray]:
    return batches_of(mixture, 1)


def batches_of(
    mixture: RowMixture, processes: int, reading: Reading = PLAIN
) -> dict[str, np.ndarray]:
    """Global batches, put together from those of all processes, of which each opens the data."""
    streams = [
        opened(mixture, reading).train.stream(BatchShard(BATCH, 5, i, processes), None)
        for i in range(processes)
    ]
    steps = [[next(stream) for stream in streams] for _ in range(BATCHES)]
    for stream in streams:
        stream.close()
    return {
        name: np.stack([np.concatenate([part[name] for part in parts]) for parts in steps])
        for name in steps[0][0]
    }


def test_a_row_number_says_source_and_row(
    expected: dict[str, np.ndarray], tiny_rows: Rows, books: Rows
) -> None:
    """Those of the second source follow those of the first; a quarter is of it in every prefix."""
    web = read_manifest(tiny_rows.train).rows
    rows = expected["row"].ravel()
    of_books = np.cumsum(rows >= web)
    assert np.abs(of_books - np.arange(1, len(rows) + 1) / 4).max() < 1
    tables = [rows.open(SEQUENCE_LENGTH, 1, PLAIN).train.rows.rows for rows in (tiny_rows, books)]
    for place in (0, 1, 2, 3, 500, 501, 502, 503):
        row = int(rows[place])
        stored = tables[row >= web].read([row - web if row >= web else row])
        np.testing.assert_array_equal(
            expected["tokens"].reshape(-1, SEQUENCE_LENGTH + 1)[place], stored["tokens"][0]
        )
        assert expected["text_bytes"].ravel()[place] == stored["text_bytes"][0]


def test_batches_do_not_depend_on_processes_and_threads(
    mixture: RowMixture, expected: dict[str, np.ndarray]
) -> None:
    batches = batches_of(mixture, 4, Reading(threads=4, ahead=2))
    for name, values in expected.items():
        np.testing.assert_array_equal(batches[name], values)


def test_a_part_of_the_validation_rows_has_its_part_of_each(mixture: RowMixture) -> None:
    """All of them are each row once, numbered from source to source."""
    data = opened(mixture)
    sizes = [len(rows.rows) for rows in data.sets.values()]
    parts = list(evaluation_rows(data.validation, BatchShard(BATCH), data.tokenizer.bos))
    rows = np.concatenate([part["row"] for part in parts])[: sum(sizes)]
    assert sorted(rows) == list(range(sum(sizes)))
    of_web = np.cumsum(rows < sizes[0])
    share = sizes[0] / sum(sizes)
    assert np.abs(of_web - share * np.arange(1, sum(sizes) + 1)).max() < 1
    assert all(
        (np.diff(part) > 0).all() for part in (rows[rows < sizes[0]], rows[rows >= sizes[0]])
    )


def test_sources_that_do_not_go_together_are_one_sentence(tiny_rows: Rows, tmp_path: Path) -> None:
    train_tokenizer(
        [sentences(seed, 9) for seed in range(500, 600)], VOCAB_SIZE, tmp_path / "other.model"
    )
    foreign = written(tmp_path / "foreign", Tokenizer(str(tmp_path / "other.model")), 800)
    refused = [
        (foreign, "other.model is another tokenizer than .*: prepare the rows of all"),
        (tiny_rows, "Rows.train of two sources hold the same rows"),
    ]
    for rows, sentence in refused:
        with pytest.raises(UserError, match=sentence):
            opened(mixed(tiny_rows, rows))
    with pytest.raises(UserError, match="has 'web'"):
        opened(RowMixture((Rows(), Rows()), ("web", "web"), (1, 2)))


@pytest.fixture(scope="module")
def gin_file(tiny_rows: Rows, books: Rows, tmp_path_factory: pytest.TempPathFactory) -> Path:
    mixture = f"""
LanguageModel.data = @RowMixture()
LogConfig.every = 1
RowMixture.rows = (@web/Rows(), @books/Rows())
RowMixture.names = ('web', 'books')
RowMixture.weights = (0.75, 0.25)
books/Rows.train = "{books.train}"
books/Rows.validation = "{books.validation}"
"""
    return write_gin(tmp_path_factory.mktemp("mixed"), tiny_rows, mixture)


def test_a_run_is_resumed_to_the_last_bit_and_not_with_other_shares(
    gin_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert train(gin_file, whole) == 0
    said = capsys.readouterr().out
    assert "web 75.00% (has 535), books 25.00% (has " in said
    assert "validation books" in said.split("step 12")[0]
    assert train(gin_file, stopped, "CheckpointConfig.every = 7") == 0
    shrunk = stopped / "checkpoints"
    assert (shrunk / "12").exists() and (shrunk / "7").exists()
    assert train(gin_file, stopped, "RowMixture.weights = (3, 2)") == 2
    refused = capsys.readouterr().err
    assert "data.train rows = '3/4 web " in refused and "has '3/5 web " in refused
    assert train(gin_file, stopped, "--step=7") == 0
    ours, theirs = measured(whole), measured(stopped)
    for tag in ("train/loss_nats", "validation/loss_nats", "validation/books_bits_per_byte"):
        values = [{x["step"]: x[tag] for x in lines if tag in x} for lines in (ours, theirs)]
        assert values[0] and values[0] == values[1]
    kept = read_documents(whole, 12)
    assert kept is not None
    joint, web, books = (kept.sets[name] for name in ("", "web", "books"))
    assert len(joint) == len(web) + len(books), "documents are joined over the rows of a source"
    assert joint.tokens_N.tolist() == [*web.tokens_N, *books.tokens_N]
