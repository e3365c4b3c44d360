"""The house rules: who may import whom, how light the import is, how long a file may be."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Each room or front file may import from itself and from those before it.
ORDER = (
    *("revision", "suggestions", "field_types", "config", "settings", "arguments", "ending"),
    *(
        "command_line",
        "signals",
        "huge_pages",
        "gin_text",
        "gin_files",
        "metrics",
        "kernels",
        "attention",
    ),
    "parallel",
    *("model", "input", "tasks", "schedules", "muon", "optim", "train_step", "update_policy"),
    "code_loss",
    *("diagnostics", "sinks", "experiment", "running", "coordcheck"),
    *(
        "export",
        "trainer",
        "plan",
        "calibrate",
        "comparing",
        "sweeps",
        "commands",
        "cli",
        "__main__",
    ),
)
# The folders beside hyla_lm/, which has links to them. Of hyla_lm only the command line uses them.
FOLDERS = ("data", "evals", "tpu")
# Copied to exported folders, where they import each other and nothing of hyla_lm.
COPIED = ("modeling_hyla.py", "transformers_hyla.py")
MODULES = sorted(
    path
    for path in (ROOT / "hyla_lm").rglob("*.py")
    if path.resolve().is_relative_to(ROOT / "hyla_lm")
)


def imported(path: Path) -> list[str]:
    """Names of the modules a file imports, wherever the import stands."""
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 or path.name in COPIED, f"{path}: relative import"
            names.append(node.module or "")
    return names


def part_of(path: Path) -> str:
    return path.relative_to(ROOT / "hyla_lm").parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_follow_the_arrow(path: Path) -> None:
    here = part_of(path)
    if here == "__init__":
        return
    for name in imported(path):
        assert name.split(".")[0] not in (*FOLDERS, "tests"), f"{path}: {name}"
        if name.startswith("hyla_lm."):
            used = name.split(".")[1]
            assert (used in FOLDERS and here == "commands") or (
                ORDER.index(used) <= ORDER.index(here)
            ), f"{here} imports {used}"


def test_only_the_checkpoint_module_imports_orbax() -> None:
    users = [path.name for path in MODULES if any("orbax" in name for name in imported(path))]
    assert users == ["checkpoint.py"]


def test_only_what_is_copied_to_exported_folders_imports_torch() -> None:
    others = {"torch", "transformers"}
    users = {p for p in MODULES if others & {name.split(".")[0] for name in imported(p)}}
    assert {path.name for path in users} == set(COPIED)
    assert not [name for path in users for name in imported(path) if name.startswith("hyla_lm")]


@pytest.mark.parametrize("folder", ["hyla_lm", "data", "evals", "tpu"])
def test_only_configuration_touches_gin(folder: str) -> None:
    users = {path.name for path in (ROOT / folder).rglob("*.py") if "gin" in imported(path)}
    assert users == ({"config.py", "gin_files.py"} if folder == "hyla_lm" else set())


def test_only_one_place_makes_a_mesh() -> None:
    makers = [path.name for path in MODULES if "make_mesh(" in path.read_text()]
    assert sorted(makers) == ["mesh.py", "program.py"]


def lines_to_read(*modules: str, without: tuple[str, ...]) -> int:
    """Lines of these modules and of all that they import, but for those rooms."""
    found: dict[Path, int] = {}
    waiting = list(modules)
    while waiting:
        path = ROOT / f"{waiting.pop().replace('.', '/')}.py"
        if not path.is_file() or path in found or part_of(path) in without:
            continue
        found[path] = len(path.read_text().splitlines())
        waiting += [name for name in imported(path) if name.startswith("hyla_lm.")]
    return sum(found.values())


def test_the_page_is_true_of_what_there_is_to_read() -> None:
    """Of the update: without what makes batches and without the kernels, each its own subject."""
    update = ("hyla_lm.train_step", "hyla_lm.model.decoder", "hyla_lm.tasks.next_token")
    page = (ROOT / "docs" / "architecture.md").read_text()
    claimed = re.search(r"the update are about ([\d,]+) lines", page)
    assert claimed is not None
    count = lines_to_read(*update, without=("input", "kernels"))
    assert abs(count - int(claimed[1].replace(",", ""))) <= 100, count


def test_the_loop_is_one_page() -> None:
    tree = ast.parse((ROOT / "hyla_lm" / "trainer.py").read_text())
    [loop] = [n for n in tree.body if getattr(n, "name", "") == "train_steps"]
    assert isinstance(loop, ast.FunctionDef) and loop.end_lineno is not None
    assert loop.end_lineno - loop.lineno < 30


@pytest.mark.parametrize("folder", ["hyla_lm", "data", "evals", "tpu"])
def test_files_stay_short(folder: str) -> None:
    lengths = {path: len(path.read_text().splitlines()) for path in (ROOT / folder).rglob("*.py")}
    assert {path: length for path, length in lengths.items() if length > 350} == {}


def test_imports_load_no_tensorflow_and_are_quick() -> None:
    code = (
        "import time; start = time.monotonic(); import hyla_lm; "
        "seconds = time.monotonic() - start; import sys, hyla_lm.cli, hyla_lm.trainer, "
        "hyla_lm.data.sample_corpus; print(seconds, 'tensorflow' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    seconds, tensorflow = done.stdout.split()
    assert float(seconds) < 4
    assert tensorflow == "False"
