"""What is installed: one package, which works from any folder, whatever lies there."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests import preloaded

ROOT = Path(__file__).parents[1]
PARTS = ("hyla_lm", "data", "evals", "tpu", "gin", "pyproject.toml", "README.md", "LICENSE")
TINY = (
    *("--gin.TrainConfig.steps=4", "--gin.TrainConfig.batch_size=8", "--gin.LogConfig.every=2"),
    *("--gin.ModelConfig.model_dim=16", "--gin.ModelConfig.mlp_dim=16"),
    *("--gin.OptimizerConfig.warmup_steps=1", "--gin.FuzzyLogic.evaluation_examples=8"),
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in PARTS:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--wheel-dir", out, source], check=True)
    [found] = out.iterdir()
    return found


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    zipfile.ZipFile(wheel).extractall(folder)
    return folder


def run(site: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """hyla-lm as it is in the wheel, from a folder that has other packages of its own."""
    for name in ("data", "evals", "tpu"):
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "__init__.py").write_text("raise ImportError('a stranger')\n")
    return preloaded.run(
        [sys.executable, "-m", "hyla_lm", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
    )


def test_the_wheel_has_one_package_with_all_its_files(wheel: Path) -> None:
    files = set(zipfile.ZipFile(wheel).namelist())
    assert {name.split("/")[0] for name in files if ".dist-info" not in name} == {"hyla_lm"}
    for folder in ("data", "evals", "tpu", "gin"):
        wanted = [p for p in (ROOT / folder).rglob("*.*") if "__pycache__" not in p.parts]
        assert {f"hyla_lm/{path.relative_to(ROOT)}" for path in wanted} <= files
    assert {"hyla_lm/py.typed", "hyla_lm/export/modeling_hyla.py"} <= files
    [top_level] = [name for name in files if name.endswith("top_level.txt")]
    assert zipfile.ZipFile(wheel).read(top_level) == b"hyla_lm\n"


def test_the_wheel_trains_evaluates_and_plans_experiments_anywhere(
    site: Path, tmp_path: Path
) -> None:
    gin_file = "--gin_file=gin/evals/fuzzy_logic_strict.gin"
    trained = run(site, tmp_path, "train", gin_file, "--workdir=run", *TINY)
    assert trained.returncode == 0, trained.stderr
    assert run(site, tmp_path, "evaluate", "--workdir=run").returncode == 0
    text = (tmp_path / "run" / "config.gin").read_text()
    assert "import hyla_lm.evals.tasks.fuzzy_logic\n" in text
