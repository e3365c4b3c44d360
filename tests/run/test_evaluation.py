"""The losses of documents that a run writes: what they add up to, what becomes of their files."""

from pathlib import Path

import jax
import numpy as np
import pytest

from hyla_lm.config.read_experiment import read_experiment
from hyla_lm.input.prepared import Rows
from hyla_lm.parallel.sharding import shard_of
from hyla_lm.run.evaluation import DocumentLosses, evaluate, read_documents
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
