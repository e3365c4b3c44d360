"""Interventions: nothing changed is the evaluation, and what is put in decides the answer."""

import json
from pathlib import Path

import numpy as np
import pytest

from hyla_lm.cli.main import main
from hyla_lm.evals.interventions.command import read
from hyla_lm.evals.interventions.measure import Subject
from hyla_lm.evals.interventions.report import write_report
from hyla_lm.parallel.mesh import all_devices
from hyla_lm.run.restored import open_run

pytestmark = pytest.mark.usefixtures("programs_once")

EXAMPLES = 128
COMMITTED = Path("docs/results/interventions")
RUN = """
include "gin/evals/fuzzy_logic_strict.gin"
TrainConfig.steps = 30
TrainConfig.batch_size = 32
TrainConfig.eval_every = 30
ModelConfig.num_layers = 2
ModelConfig.model_dim = 16
ModelConfig.num_heads = 2
ModelConfig.mlp_dim = 16
OptimizerConfig.warmup_steps = 2
FuzzyLogic.evaluation_examples = 128
SEQUENCE_LENGTH = 8
"""
# Codes made by the definition differ from those of the kernel by the order of sums in float32.
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def workdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("interventions")
    (home / "run.gin").write_text(RUN)
    assert main(["train", f"--gin_file={home / 'run.gin'}", f"--workdir={home / 'run'}"]) == 0
    return home / "run"


@pytest.fixture(scope="module")
def subject(workdir: Path) -> Subject:
    return Subject(open_run(str(workdir), None, (), (), all_devices()[:1]), seed=0)


def test_codes_and_values_of_the_donor_give_its_answers(subject: Subject) -> None:
    """The query's token is the same in both, for its target is not shown."""
    batch = subject.examples(0, EXAMPLES)
    donor = subject.donors(batch, 0, 0)
    theirs = subject.observe(donor)
    swapped = subject.predict(batch, theirs, True, True)
    np.testing.assert_allclose(swapped, subject.predict(donor, theirs), atol=TOLERANCE)


@pytest.mark.parametrize("shared", [0, 1])
def test_donors_share_so_many_terms_and_all_points(subject: Subject, shared: int) -> None:
    batch = subject.examples(0, EXAMPLES)
    donor = subject.donors(batch, shared, 0)
    np.testing.assert_array_equal(donor["features"][..., :-1], batch["features"][..., :-1])
    for own, other in zip(np.asarray(batch["terms"]), np.asarray(donor["terms"]), strict=True):
        assert len(set(own) & set(other)) == shared
        assert sorted(other) in subject.table_CxK.tolist()


def test_a_command_from_runs_to_the_report(
    workdir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["evals", "interventions", str(workdir), f"--out={tmp_path}", "--examples=128"]
    assert main(arguments) == 0
    [found] = read(tmp_path)
    validation = json.loads((workdir / "summary.json").read_text())["validation"]
    want = validation["held_out_r2_pooled"]
    assert found.found["none"]["own_r2"] == pytest.approx(want, abs=1e-4)
    assert found.found["swap of both"]["own_r2"] != found.found["none"]["own_r2"]
    text = (tmp_path / "report.md").read_text()
    assert all(f"| {name} |" in text for name in found.found)
    capsys.readouterr()
    assert main(arguments) == 0
    assert "is not measured again" in capsys.readouterr().out


def test_the_committed_report_is_that_of_its_results(tmp_path: Path) -> None:
    write_report(tmp_path, read(COMMITTED))
    assert (tmp_path / "report.md").read_text() == (COMMITTED / "report.md").read_text()
