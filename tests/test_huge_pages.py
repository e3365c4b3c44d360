"""A command starts again with huge pages, once, as what it was."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hyla_lm.cli import huge_pages

PROGRAM = """
import json, os, sys
print("started", flush=True)
from hyla_lm.cli.huge_pages import start_with_huge_pages
start_with_huge_pages()
print(json.dumps([sys.argv[1:], os.environ.get("GLIBC_TUNABLES"), os.getpid()]))
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="huge pages are asked of Linux")


def run(*arguments: str, **variables: str) -> tuple[int, list]:
    """How often the program started, and what it printed last; its process stays the same."""
    inherited = {name: value for name, value in os.environ.items() if name != huge_pages.VARIABLE}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments],
        env={**inherited, "JAX_PLATFORMS": "cpu", **variables},
        stdout=subprocess.PIPE,
        text=True,
    )
    *starts, last = process.communicate(timeout=60)[0].splitlines()
    printed = json.loads(last)
    assert printed[2] == process.pid
    return len(starts), printed


def test_a_training_starts_once_more_and_its_children_have_the_environment_of_the_user() -> None:
    starts, (arguments, tunables, _) = run("train", "two words", "--and=3")
    assert (starts, arguments, tunables) == (2, ["train", "two words", "--and=3"], None)


@pytest.mark.parametrize(
    ("command", "variables"), [("train", {"GLIBC_TUNABLES": ""}), ("sample", {})]
)
def test_other_commands_and_what_the_user_has_set_stay(
    command: str, variables: dict[str, str]
) -> None:
    starts, (_, tunables, _) = run(command, **variables)
    assert (starts, tunables) == (1, variables.get("GLIBC_TUNABLES"))


@pytest.mark.parametrize(("device", "then"), [("no*device", "cpu"), ("null", None)])
def test_libtpu_without_a_tpu_leaves_the_cpu(
    device: str, then: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "libtpu.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(huge_pages, "ACCELERATORS", (device,))
    monkeypatch.setattr(os, "environ", {})
    huge_pages.choose_cpu()
    assert os.environ.get("JAX_PLATFORMS") == then
