"""The house rules: who may import whom, how light the import is, how much a run needs."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("hyla_lm", "data", "evals", "tpu")
# Copied to exported folders, where they import each other and nothing of hyla_lm.
COPIED = ("modeling_hyla.py", "transformers_hyla.py")
FILES = {
    path: ".".join(
        (
            *(() if path.relative_to(ROOT).parts[0] == "hyla_lm" else ("hyla_lm",)),
            *path.relative_to(ROOT).with_suffix("").parts,
        )
    ).removesuffix(".__init__")
    for folder in FOLDERS
    for path in sorted((ROOT / folder).rglob("*.py"))
}
MODULES = {name: path for path, name in FILES.items()}
# Of these rooms the rest of the package knows nothing; the command line imports them by name.
LEAVES = ("hyla_lm.tools", "hyla_lm.cli", "hyla_lm.data", "hyla_lm.evals", "hyla_lm.tpu")


def imported(path: Path) -> set[str]:
    """Names of the modules a file imports, wherever the import stands."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 or path.name in COPIED, f"{path}: relative import"
            module = node.module or ""
            inner = {f"{module}.{alias.name}" for alias in node.names}
            names |= {module} | {name for name in inner if name in MODULES}
    return names


def is_in(name: str, room: str) -> bool:
    return name == room or name.startswith(f"{room}.")


def test_the_core_imports_neither_tools_nor_the_folders_beside_it() -> None:
    for path, name in FILES.items():
        whole = name in ("hyla_lm", "hyla_lm.__main__")
        if whole or is_in(name, "hyla_lm.cli") or is_in(name, "hyla_lm.tools"):
            continue
        is_beside = any(is_in(name, room) for room in LEAVES)
        forbidden = ("hyla_lm.tools",) if is_beside else LEAVES
        used = [other for other in imported(path) for room in forbidden if is_in(other, room)]
        assert not used, f"{name} imports {used}"


@pytest.mark.parametrize(
    ("library", "users"),
    [
        ("orbax", {"hyla_lm.checkpoint.checkpoint"}),
        ("gin", {f"hyla_lm.config.{name}" for name in ("declare", "gin_files", "gin_text")}),
        ("torch", {"hyla_lm.export.modeling_hyla", "hyla_lm.export.transformers_hyla"}),
        ("transformers", {"hyla_lm.export.transformers_hyla"}),
    ],
)
def test_a_library_has_one_place(library: str, users: set[str]) -> None:
    found = {n for p, n in FILES.items() if any(is_in(used, library) for used in imported(p))}
    assert found == users


def test_what_training_needs_stays_small() -> None:
    reached: set[str] = set()
    waiting = {"hyla_lm.train"}
    while waiting:
        name = waiting.pop()
        reached.add(name)
        used = {other for other in imported(MODULES[name]) if other in MODULES}
        waiting |= {u for u in used if MODULES[u].name != "__init__.py"} - reached
    assert len(reached) <= 80


def test_imports_load_no_tensorflow_and_are_quick() -> None:
    code = (
        "import time; start = time.monotonic(); import hyla_lm; "
        "seconds = time.monotonic() - start; import sys, hyla_lm.cli.main, hyla_lm.train, "
        "hyla_lm.data.sample_corpus; print(seconds, 'tensorflow' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    seconds, tensorflow = done.stdout.split()
    assert float(seconds) < 4
    assert tensorflow == "False"
