"""The notebook runs from its first cell to its last, on a CPU and at a small size."""

import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from tensorboard import manager

from hyla_lm.cli.main import main
from tests.data.conftest import prose

FOLDER = Path(__file__).parents[1] / "notebooks"
QUICKSTART = FOLDER / "quickstart.ipynb"
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


def test_the_notebook_is_committed_without_outputs() -> None:
    cells = [c for c in nbformat.read(QUICKSTART, as_version=4).cells if c.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in cells)


def test_the_notebook_trains_samples_and_draws(executed: nbformat.NotebookNode) -> None:
    code = [cell for cell in executed.cells if cell.cell_type == "code"]
    [train] = [cell for cell in code if "hyla_lm train" in cell.source]
    assert "bits per byte" in outputs(train)
    [sample] = [cell for cell in code if "model.generate" in cell.source]
    assert outputs(sample).count("Return the") == 3
    shown = [part.get("data", {}) for cell in code for part in cell.outputs]
    assert sum("image/png" in data for data in shown) == 2
