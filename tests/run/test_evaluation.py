"""The losses of documents that a run writes: what they add up to, what becomes of their files."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from hyla_lm.config.read_experiment import read_experiment
from hyla_lm.ending import STOPPED
from hyla_lm.input.prepared import Rows
from hyla_lm.parallel import processes
from hyla_lm.parallel.sharding import BatchShard, shard_of
from hyla_lm.run import evaluation
from hyla_lm.run.evaluation import DocumentLosses, Documents, evaluate, read_documents
from hyla_lm.run.program import lower_step, make_program
from tests.run_lines import measured
from tests.tiny_runs import train, write_gin

pytestmark = pytest.mark.usefixtures("programs_once")

# A batch's sum on the device is of at most 8 x 16 float32 numbers, which round at 6e-8 each time;
# the file rounds each document once. Together they stay below ten roundings of a sum.
SAME_SUM = 1e-6
LIMIT = "LanguageModel.validation_rows = 13"


def kept(workdir: Path, step: int) -> DocumentLosses:
    found = read_documents(workdir, step)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def gin_file(tiny_rows: Rows, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gin(tmp_path_factory.mktemp("documents"), tiny_rows, LIMIT)


@pytest.fixture(scope="module")
def whole(gin_file: Path) -> Path:
    """A run that was never stopped, whose periodic evaluations see 13 rows."""
    assert train(gin_file, gin_file.parent / "whole") == 0
    return gin_file.parent / "whole"


def test_documents_add_up_to_what_is_logged(whole: Path) -> None:
    """At every evaluation: of 13 rows, whose last batch is padded, and of all at the end."""
    for line in measured(whole, "validation/"):
        documents = kept(whole, line["step"]).sets[""]
        nats, tokens = documents.nats_N.sum(), documents.tokens_N.sum()
        bits = nats / np.log(2) / documents.bytes_N.sum()
        assert nats / tokens == pytest.approx(line["validation/loss_nats"], rel=SAME_SUM)
        assert bits == pytest.approx(line["validation/bits_per_byte"], rel=SAME_SUM)
    steps = [kept(whole, step).sets[""] for step in (4, 8, 12)]
    assert steps[0].row_N.max() < 13 <= steps[2].row_N.max()
    assert steps[0].tokens_N.sum() < 13 * 16 and len(steps[2]) == 20
    assert steps[0].tokens_N[-1] < steps[2].tokens_N[len(steps[0]) - 1], "the limit cuts one"


def test_losses_by_token_leave_metrics_and_the_train_step_unchanged(gin_file: Path) -> None:
    """To the last bit."""
    on = make_program(read_experiment([str(gin_file)], []))
    off = make_program(read_experiment([str(gin_file)], ["LanguageModel.document_losses = False"]))
    assert off.token_step is None
    values = []
    with jax.set_mesh(on.mesh):
        params = on.init().params
        for program in (on, off):
            shard = shard_of(program.mesh, 8)
            found = evaluate(program, params, 0, shard, is_final=True)
            values.append(found.metrics)
            assert (found.documents is None) == (program is off)
        assert lower_step(on).as_text() == lower_step(off).as_text()
    assert values[0] == values[1]


def test_shards_of_several_processes_give_the_same_documents(
    gin_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes see four rows of each batch; what they gather is what one process sees."""
    program = make_program(read_experiment([str(gin_file)], []))

    def parts_of(shard: BatchShard, gathered: Any) -> DocumentLosses:
        monkeypatch.setattr(processes, "gather_shards", gathered)
        found = evaluate(program, params, 0, shard, is_final=False).documents
        assert found is not None
        return found

    sent: list[Any] = []

    def send(value: Any, shard: BatchShard) -> list[Any]:
        sent.append(json.loads(json.dumps(value)))
        return [value]

    with jax.set_mesh(program.mesh):
        params = program.init().params
        alone = parts_of(BatchShard(8), lambda value, _: [value])
        parts_of(BatchShard(8, 0, 0, 2, (0, 2, 4, 6)), send)
        together = parts_of(BatchShard(8, 0, 1, 2, (1, 3, 5, 7)), lambda value, _: [*sent, value])
    for name in ("row_N", "place_N", "tokens_N"):
        np.testing.assert_array_equal(
            getattr(alone.sets[""], name), getattr(together.sets[""], name)
        )
    # Batches of four rows and of eight are two programs, whose float32 may round apart.
    np.testing.assert_allclose(alone.sets[""].nats_N, together.sets[""].nats_N, rtol=1e-5)
    np.testing.assert_allclose(alone.sets[""].bytes_N, together.sets[""].bytes_N, rtol=1e-12)


def test_a_stopped_evaluation_leaves_no_file_and_a_resumed_run_those_of_a_whole_one(
    gin_file: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = tmp_path / "stopped"

    def asked(*arguments: Any) -> Any:
        arguments[-1]._requested = True
        return evaluate(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(evaluation, "evaluate", asked)
        assert train(gin_file, stopped) == STOPPED
    assert not (stopped / "documents").exists()
    assert train(gin_file, stopped) == 0
    names = sorted(path.name for path in (whole / "documents").iterdir())
    assert names == ["12.npz", "4.npz", "8.npz"]
    for name in names:
        one, other = ((f / "documents" / name).read_bytes() for f in (whole, stopped))
        assert one == other


def test_a_file_of_25600_rows_is_small() -> None:
    """Rows of 512 tokens with a document in each, as C4 has: below 2 MB, with random losses."""
    rng, count = np.random.default_rng(0), 27_000
    ends = np.cumsum(rng.integers(100, 900, count))
    columns = (ends // 512, ends % 512, rng.exponential(1500, count))
    documents = Documents(*columns, rng.integers(1, 900, count), rng.exponential(2000, count))
    assert len(DocumentLosses(1, {"": documents}, {}).to_bytes()) < 1e6
