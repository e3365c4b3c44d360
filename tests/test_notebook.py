"""The notebooks run from their first cell to their last, on a CPU and at a small size."""

import json
import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from tensorboard import manager

from hyla_lm.cli.main import main
from tests.data.conftest import prose

FOLDER = Path(__file__).parents[1] / "notebooks"
QUICKSTART, FIRST_CHIP = FOLDER / "quickstart.ipynb", FOLDER / "first_chip.ipynb"
SMALL = (
    "--gin.TrainConfig.steps=4 --gin.TrainConfig.batch_size=2 --gin.LogConfig.every=2 "
    "--gin.OptimizerConfig.warmup_steps=2 --gin.ModelConfig.model_dim=16 "
    "--gin.ModelConfig.mlp_dim=16 --gin.ModelConfig.num_layers=1 --gin.LogConfig.details_every=0 "
)


def parameters_of(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    [cell] = [c for c in notebook.cells if "parameters" in c.metadata.get("tags", ())]
    return cell


def outputs(cell: nbformat.NotebookNode) -> str:
    return "".join(part.get("text", "") for part in cell.outputs)


@pytest.fixture
def executed(tmp_path: Path) -> nbformat.NotebookNode:
    notebook = nbformat.read(QUICKSTART, as_version=4)
    (tmp_path / "text").mkdir()
    for seed in range(40):
        (tmp_path / "text" / f"{seed}.txt").write_text(prose(seed))
    made = ["--input", str(tmp_path / "text"), "--output", str(tmp_path / "rows")]
    assert main(["data", "prepare", *made, "--train_tokenizer", "--vocab_size=512"]) == 0
    parameters_of(notebook).source += f"\nGIN_FILE, OPTIONS = 'gin/own_text.gin', '{SMALL}'"
    others = {board.pid for board in manager.get_all()}
    client = NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}})
    try:
        return client.execute()
    finally:
        for pid in {board.pid for board in manager.get_all()} - others:
            os.kill(pid, 15)


@pytest.mark.parametrize("path", [QUICKSTART, FIRST_CHIP], ids=lambda path: path.stem)
def test_notebooks_are_committed_without_outputs(path: Path) -> None:
    cells = [c for c in nbformat.read(path, as_version=4).cells if c.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in cells)


def test_the_notebook_trains_samples_and_draws(executed: nbformat.NotebookNode) -> None:
    code = [cell for cell in executed.cells if cell.cell_type == "code"]
    [train] = [cell for cell in code if "hyla_lm train" in cell.source]
    assert "bits per byte" in outputs(train)
    [sample] = [cell for cell in code if "model.generate" in cell.source]
    assert outputs(sample).count("Return the") == 3
    shown = [part.get("data", {}) for cell in code for part in cell.outputs]
    assert sum("image/png" in data for data in shown) == 2


@pytest.mark.full
def test_the_first_chip_is_measured_and_its_file_shown(tmp_path: Path) -> None:
    notebook = nbformat.read(FIRST_CHIP, as_version=4)
    tiny = SMALL.replace("LogConfig.every=2", "LanguageModel.sequence_length=8")
    parameters_of(notebook).source += f"\nOPTIONS = '--repeats=3 {tiny}'"
    client = NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}})
    code = [cell for cell in client.execute().cells if cell.cell_type == "code"]
    [measure] = [cell for cell in code if "hyla_lm calibrate" in cell.source]
    assert "kernel checks are within their bounds" in outputs(measure)
    [shown] = [cell for cell in code if "read_text" in cell.source]
    assert json.loads(outputs(shown)) == json.loads((tmp_path / "first_chip.json").read_text())
