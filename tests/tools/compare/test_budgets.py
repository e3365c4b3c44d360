"""Which losses are taken of each run, which runs are a group, and which groups are compared."""

from pathlib import Path

import numpy as np
import pytest

import hyla_lm
from hyla_lm.errors import UserError
from hyla_lm.tools.compare.runs import grouped, read_run, value_of
from tests.tools.compare.written_runs import FACTS, documents, write_run

LN2 = np.log(2)
ONE, TWO, FOUR = (documents([x * LN2 * 100] * 4) for x in (1, 2, 4))  # bits per byte
ATTENTION = "ModelConfig.attention = 'linear'"


def bits(runs: list[str], at: str = "steps") -> list[float]:
    found = hyla_lm.compare(runs, at=at)
    return [group.bits_per_byte for group in found.groups]


def test_runs_are_compared_where_the_shorter_one_ended(tmp_path: Path) -> None:
    """Linearly between the evaluations around it, document by document."""
    short = write_run(tmp_path / "short", {10: FOUR, 20: TWO}, ATTENTION)
    long = write_run(tmp_path / "long", {10: FOUR, 40: ONE, 50: ONE})
    found = hyla_lm.compare([short, long])
    assert found.budget == 20
    assert [group.bits_per_byte for group in found.groups] == pytest.approx([2, 3])
    assert found.groups[1].runs[0].steps == (10, 40)
    assert any("linear between two" in note for note in found.notes)


def test_budgets_are_tokens_flops_and_seconds_too(tmp_path: Path) -> None:
    every = {step: value for step, value in ((10, FOUR), (20, TWO), (40, ONE))}
    one = write_run(tmp_path / "one", every, ATTENTION, step_seconds=1)
    twice = {**FACTS, "tokens_per_step": 200, "flops_per_token": 5.0}
    other = write_run(tmp_path / "other", every, step_seconds=4, facts=twice)
    assert bits([one, other]) == pytest.approx([1, 1])
    assert bits([one, other], "tokens") == pytest.approx([1, 2])
    assert bits([one, other], "flops") == pytest.approx([1, 1])
    assert bits([one, other], "seconds") == pytest.approx([1, 4])


def test_documents_that_a_run_saw_in_part_are_left_out_and_counted(tmp_path: Path) -> None:
    whole = documents([100.0, 200.0, 300.0, 400.0])
    part = whole.take(np.arange(3))
    part.tokens_N[2] = 5  # cut by the last row that was evaluated
    one = write_run(tmp_path / "one", {10: whole}, ATTENTION)
    other = write_run(tmp_path / "other", {10: part})
    found = hyla_lm.compare([one, other])
    assert (found.documents, found.left_out) == (2, 2)
    expected = 300 / LN2 / 200
    assert [g.bits_per_byte for g in found.groups] == pytest.approx([expected, expected])


def test_an_evaluation_counts_if_its_line_stands_in_the_metrics(tmp_path: Path) -> None:
    """Files of later steps of a run that went back are of another time; an evaluator's count."""
    one = write_run(tmp_path / "one", {40: ONE, 50: TWO}, ATTENTION)
    lines = (tmp_path / "one" / "metrics.jsonl").read_text().splitlines()[:2]
    (tmp_path / "one" / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    assert [losses.step for losses in read_run(one).evaluations] == [40]
    early = write_run(tmp_path / "early", {20: TWO})
    with pytest.raises(UserError, match="first evaluated at 40 steps"):
        hyla_lm.compare([early, one])
    write_run(tmp_path / "one" / "evaluator", {20: TWO, 40: FOUR})
    assert bits([early, one]) == pytest.approx([2, 2])


def test_seeds_of_one_configuration_are_a_group_named_by_what_differs(tmp_path: Path) -> None:
    """A macro, a default that is written out and the order of lines make no difference."""
    plain = "ModelConfig.num_layers = 3\nModelConfig.attention = %A\nA = 'linear'"
    same = f"{ATTENTION}\nModelConfig.remat = False\nModelConfig.num_layers = 3"
    other = "ModelConfig.attention = 'softmax'\nModelConfig.num_layers = 3"
    runs = [
        read_run(write_run(tmp_path / name, {1: ONE}, settings, seed))
        for name, settings, seed in (("a", plain, 0), ("b", other, 0), ("c", same, 1))
    ]
    groups = grouped(runs)
    assert [group.name for group in groups] == ["attention=linear", "attention=softmax"]
    assert [[run.name for run in group.runs] for group in groups] == [["a", "c"], ["b"]]
    assert groups[0].different == {"ModelConfig.attention": "'linear'"}
    assert value_of({}, "ModelConfig.remat") == "False"


def test_pairs_are_all_or_those_with_the_baseline(tmp_path: Path) -> None:
    runs = [
        write_run(tmp_path / f"r{n}", {1: ONE}, f"ModelConfig.num_layers = {n + 1}")
        for n in range(3)
    ]
    found = hyla_lm.compare(runs)
    assert len(found.pairs) == 3
    assert any("3 comparisons" in note for note in found.notes)
    found = hyla_lm.compare(runs, baseline="r1")
    assert [(pair.a, pair.b) for pair in found.pairs] == [
        ("num_layers=1", "num_layers=2"),
        ("num_layers=3", "num_layers=2"),
    ]
