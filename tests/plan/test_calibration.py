"""A plan corrected by a calibration file, in hand arithmetic; refusals of files that do not fit.

A plan is what the compiler found of a v5e, written by hand: no libtpu is needed.
"""

import copy
import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hyla_lm.cli import main as cli
from hyla_lm.errors import UserError
from hyla_lm.tools.plan.calibration import (
    Calibration,
    check_device,
    check_program,
    check_versions,
    corrected_range,
    growths,
    predicted,
    read_calibration,
    sentence,
)
from hyla_lm.tools.plan.plan import corrected

MS = 1e-3
CLOCK = 1.5e9


def compiled(
    estimated: dict[str, float], counted: dict[str, float], collectives: dict[str, float]
) -> dict[str, Any]:
    """What a plan finds of a step, from milliseconds of its parts and collectives."""
    compute = {"estimated": sum(estimated.values()), "counted": sum(counted.values())}
    links = sum(collectives.values())
    ends = {
        "shortest": {"step_seconds": max(min(compute.values()), links) * MS},
        "longest": {"step_seconds": (max(compute.values()) + links) * MS},
    }
    return {
        "cycles": [
            {
                "part": part,
                "estimated": estimated[part] * MS * CLOCK,
                "counted": counted[part] * MS * CLOCK,
            }
            for part in estimated
        ],
        "step_seconds": {f"{method}_compute": x * MS for method, x in compute.items()}
        | {"collectives": links * MS, "latency": 0.0, "bound": 1 * MS},
        "collectives": [{"kind": kind, "seconds": x * MS} for kind, x in collectives.items()],
        "predicted": ends,
        "topology": "v5e:4x4",
        **{"chips": 16, "tokens_a_step": 1000, "flops_per_token": 1e6, "steps": 100},
    }


ALONE = compiled(
    {"attention kernel": 8, "feed-forward": 6, "norms": 2},
    {"attention kernel": 8, "feed-forward": 3, "norms": 1},
    {},
)
# The same model with half the attention and three times the feed-forward, on several chips.
PLANNED = compiled(
    {"attention kernel": 4, "feed-forward": 18, "norms": 2},
    {"attention kernel": 4, "feed-forward": 9, "norms": 1},
    {"all-reduce": 2},
)


def row(group: str, name: str, ms: float, spread: float = 0.0, ratio: float | None = None) -> Any:
    return {
        **{"group": group, "name": name, "seconds": ms * MS, "spread": spread, "repeats": 20},
        "ratio": {} if ratio is None else {"ring": ratio},
    }


CONTENT: dict[str, Any] = {
    "calibration": 1,
    "device": {"platform": "tpu", "kind": "TPU v5 lite", "count": 1},
    "versions": {"hyla_lm": "0.1.0", "jax": "0.10.2", "jaxlib": "0.10.2", "libtpu": "0.0.42.1"},
    "dtype": "bfloat16",
    "attention": ["hyla by pallas_hyla"],
    "measurements": [
        row("peak", "products", 3),
        row("part", "attention hyla, forward", 4),
        row("part", "attention hyla", 12),
        row("part", "feed-forward", 4),
        row("step", "train step", 20, spread=0.1),
    ],
    "prediction": ALONE,
    "no_prediction": "",
}


def calibration(**changes: Any) -> Calibration:
    return Calibration("chip.json", copy.deepcopy(CONTENT) | changes)


def with_links(plan: dict[str, Any], *ratios: float) -> Calibration:
    """Measured on several chips, with these ratios of smaller and smaller all-reduces."""
    rows = [
        row("collective", f"all-reduce, {-n} KiB", 1, 0, ratio) | {"work": -n}
        for n, ratio in enumerate(ratios)
    ]
    return calibration(measurements=[*CONTENT["measurements"], *rows], prediction=plan)


def test_the_measured_step_itself_is_predicted_as_it_was_measured() -> None:
    short, long = corrected_range(ALONE, calibration())
    assert (short, long) == (pytest.approx(18 * MS), pytest.approx(22 * MS))


def test_a_step_grows_as_cycles_do_as_a_whole_and_by_measured_parts() -> None:
    found = growths(predicted(PLANNED), predicted(ALONE), calibration().parts)
    # Measured: 12 of attention and 4 of feed-forward; they become 6 and 12.
    by_parts = (12 * 4 / 8 + 4 * 18 / 6) / 16
    assert found == pytest.approx([24 / 16, by_parts, 14 / 12, by_parts])


def test_the_range_spans_the_growths_and_hidden_and_exposed_collectives() -> None:
    short, long = corrected_range(PLANNED, calibration())
    assert short == pytest.approx(20 * 18 / 16 * 0.9 * MS)
    assert long == pytest.approx((20 * 24 / 16 + 2) * 1.1 * MS)


def test_collectives_are_those_of_the_plan_times_what_was_measured_of_their_kind() -> None:
    """The largest was 3 times as long; so 3 x 2 of the measured 20 ms were of collectives."""
    several = compiled(
        {"attention kernel": 8, "feed-forward": 6, "norms": 2},
        {"attention kernel": 8, "feed-forward": 6, "norms": 2},
        {"all-reduce": 2},
    )
    short, long = corrected_range(several, with_links(several, 3, 9, 1))
    assert (short, long) == (pytest.approx(18 * MS), pytest.approx(22 * MS))
    alone, _ = corrected_range(several | {"collectives": []}, with_links(several, 3))
    assert alone == pytest.approx((20 - 6) * 0.9 * MS)


def test_no_step_is_shorter_than_its_bound() -> None:
    plan = PLANNED | {"step_seconds": PLANNED["step_seconds"] | {"bound": 25 * MS}}
    assert corrected_range(plan, calibration())[0] == 25 * MS


def test_a_plan_is_corrected_narrower_and_says_by_what() -> None:
    same = compiled(
        {"attention kernel": 16, "feed-forward": 12, "norms": 4},
        {"attention kernel": 16, "feed-forward": 6, "norms": 2},
        {},
    )
    plan = same | corrected(same, calibration(), 2.0)
    short, long = (plan["predicted"][end] for end in ("shortest", "longest"))
    assert short["step_seconds"] == pytest.approx(36 * MS)
    assert long["step_seconds"] == pytest.approx(44 * MS)
    assert long["tokens_per_second"] == pytest.approx(1000 / (44 * MS))
    assert long["cost"] == pytest.approx(2 * 44 * MS * 100 * 16 / 3600)
    before = same["predicted"]
    assert long["step_seconds"] / short["step_seconds"] < (
        before["longest"]["step_seconds"] / before["shortest"]["step_seconds"]
    )
    said = sentence(plan["calibration"])
    assert "chip.json: 4 figures from 80 timings on 1 x TPU v5 lite" in said
    assert "libtpu 0.0.42.1" in said and "Uncorrected, the step is 24.0 ms to 32.0 ms" in said
    assert "not measured" not in said
    json.dumps(plan)


def test_latency_makes_the_longest_step_longer() -> None:
    late = PLANNED | {"step_seconds": PLANNED["step_seconds"] | {"latency": 5 * MS}}
    before, after = (corrected_range(plan, calibration()) for plan in (PLANNED, late))
    assert after[0] == before[0]
    assert after[1] - before[1] == pytest.approx(1.1 * 5 * MS), "with the spread of 10 %"


def test_collectives_that_were_not_measured_are_named() -> None:
    assert "stand as computed: all-reduce" in sentence(
        corrected(PLANNED, calibration(), None)["calibration"]
    )


def test_the_report_says_that_it_is_corrected() -> None:
    from hyla_lm.tools.plan.report import _prediction

    plan = PLANNED | corrected(PLANNED, calibration(), None)
    out = io.StringIO()
    Console(file=out, width=80).print(_prediction(plan))
    assert "Predicted, corrected by measurement" in out.getvalue()
    assert "4 figures from 80 timings" in out.getvalue()


def test_another_chip_is_refused() -> None:
    check_device(calibration(), "v5e:4x4")
    with pytest.raises(UserError, match=r"'TPU v5 lite' and --topology=v5p:2x2x1"):
        check_device(calibration(), "v5p:2x2x1")


@pytest.mark.parametrize("name", ["jax", "libtpu"])
def test_other_versions_are_refused(name: str) -> None:
    check_versions(calibration(), CONTENT["versions"])
    check_versions(calibration(), CONTENT["versions"] | {"hyla_lm": "9"})
    with pytest.raises(UserError, match=f"{name} .* this plan has 9"):
        check_versions(calibration(), CONTENT["versions"] | {name: "9"})


def test_a_file_without_a_prediction_is_refused() -> None:
    without = calibration(prediction=None, no_prediction="hyla-lm plan took more than 240 s")
    with pytest.raises(UserError, match="holds no prediction .*took more than 240 s"):
        check_versions(without, CONTENT["versions"])


def test_another_dtype_or_kernel_is_refused() -> None:
    check_program(calibration(), "bfloat16", ["hyla by pallas_hyla"])
    with pytest.raises(UserError, match="measured in bfloat16"):
        check_program(calibration(), "float32", ["hyla by pallas_hyla"])
    with pytest.raises(UserError, match="this plan runs softmax by pallas_softmax"):
        check_program(calibration(), "bfloat16", ["softmax by pallas_softmax"])


def test_the_command_refuses_before_it_compiles(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tiny_gin: Path
) -> None:
    """A file of a CPU is refused by its kind of device, without libtpu."""
    of_cpu = CONTENT | {"device": {"platform": "cpu", "kind": "cpu", "count": 1}}
    (tmp_path / "cpu.json").write_text(json.dumps(of_cpu | {"prediction": None}))
    line = [f"--gin_file={tiny_gin}", "--topology=v5e:4x4"]
    assert cli.main(["plan", *line, f"--calibration={tmp_path}/cpu.json"]) == 2
    said = capsys.readouterr().err
    assert "is of 'cpu' and --topology=v5e:4x4 has another chip" in said


def test_what_is_no_calibration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        read_calibration(str(tmp_path / "none.json"))
    for text, said in (
        ("{", "is no JSON"),
        ("[]", "no calibration"),
        ('{"calibration": 1}', "lacks device"),
    ):
        (tmp_path / "file.json").write_text(text)
        with pytest.raises(UserError, match=said):
            read_calibration(str(tmp_path / "file.json"))
