"""docs/extending.md holds: its edits, applied to a copy of the repository, and its commands."""

import re
import shutil
from pathlib import Path

import pytest

from tests.docs.commands import ROOT, finished, output_of

PAGE = (ROOT / "docs" / "extending.md").read_text()
EXAMPLES = {
    section.partition("\n")[0].partition(":")[0]: section for section in PAGE.split("\n## ")[1:]
}
EDIT = re.compile(r"^In `([^`]+)`, before `([^`]+)`\n\n```\w*\n(.*?)```$", re.M | re.S)
NEW_FILE = re.compile(r"^New file `([^`]+)`:\n\n```\w*\n(.*?)```$", re.M | re.S)
COMMANDS = re.compile(r"^```\n(hyla-lm .*?)```$", re.M | re.S)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for name in ("hyla_lm", "evals", "data", "gin"):
        shutil.copytree(ROOT / name, tmp_path / name)
        if name != "hyla_lm":
            (tmp_path / "hyla_lm" / name).symlink_to(tmp_path / name)  # as a wheel has them
    (tmp_path / "runs").mkdir()
    return tmp_path


def apply(section: str, copy: Path) -> None:
    for name, line, added in EDIT.findall(section):
        text = (copy / name).read_text()
        assert text.count(f"\n{line}\n") == 1, f"{name} has not one line {line!r}"
        (copy / name).write_text(text.replace(f"\n{line}\n", f"\n{added}{line}\n"))
    for name, content in NEW_FILE.findall(section):
        assert not (copy / name).exists(), name
        (copy / name).write_text(content)


def run(command: str, copy: Path) -> str:
    return output_of(command, copy, root=copy)


def outputs(section: str, copy: Path) -> list[str]:
    commands = [line for block in COMMANDS.findall(section) for line in block.splitlines()]
    assert commands
    return [run(command, copy) for command in commands]


def test_a_due_action(copy: Path) -> None:
    apply(EXAMPLES["A due action"], copy)
    trained, logged = outputs(EXAMPLES["A due action"], copy)
    assert "step 6/6" in trained
    assert [line.count("optim/parameter_norm") for line in logged.splitlines()] == [1, 1, 1]
    command = COMMANDS.findall(EXAMPLES["A due action"])[0].splitlines()[0]
    run(command, copy)  # a finished run again: its last line is written again, not doubled
    assert run("grep optim/parameter_norm runs/action/metrics.jsonl", copy) == logged


def test_a_variant(copy: Path) -> None:
    apply(EXAMPLES["An attention variant"], copy)
    trained, bound, own, own_bound = outputs(EXAMPLES["An attention variant"], copy)
    assert "hyla_tanh (blocked)" in trained
    assert bound == "ModelConfig.attention = 'hyla_tanh'\n"
    assert "hyla_neighbours (blocked)" in own
    assert own_bound == "ModelConfig.attention = 'hyla_neighbours'\n"


def test_a_task_learns_what_it_is_trained_on(copy: Path) -> None:
    apply(EXAMPLES["A task"], copy)
    trained, _ = outputs(EXAMPLES["A task"], copy)
    accuracy = re.search(r"step 400/400  loss \S+  accuracy (\d.\d+)", trained)
    assert accuracy and float(accuracy[1]) > 0.9, trained
    assert "pairs trained" in trained and "\n  held_out" in trained


def test_a_sink(copy: Path) -> None:
    apply(EXAMPLES["A sink"], copy)
    _, logged = outputs(EXAMPLES["A sink"], copy)
    assert {line.split(",")[0] for line in logged.splitlines()} == {"2", "4"}
    command = COMMANDS.findall(EXAMPLES["A sink"])[0].splitlines()[0]
    run(command.replace("steps=4", "steps=6"), copy)
    again = run("grep train/ runs/sink/values.csv", copy).splitlines()
    assert len(again) == len(set(again))
    assert {line.split(",")[0] for line in again} == {"2", "4", "6"}


def test_a_data_source_outside_a_clone(tmp_path: Path) -> None:
    """The folder of the command is not in Python's path, as with an installed console script."""
    section = EXAMPLES["A data source, outside a clone"]
    apply(section, tmp_path)
    shutil.copy(ROOT / "LICENSE", tmp_path / "notes.txt")
    [block] = COMMANDS.findall(section)
    describe, tokenizer, train, evaluate = block.splitlines()

    assert "TextLines.path: str = ''" in output_of(describe, tmp_path)
    output_of(tokenizer, tmp_path)
    trained = output_of(train, tmp_path)
    assert "lines of notes.txt" in trained and "A run" in trained
    assert "bits_per_byte" in output_of(evaluate, tmp_path)
    refused = finished(evaluate.replace(" --trust_imports", ""), tmp_path)
    assert refused.returncode == 2 and "imports my_lines" in refused.stderr
