"""The picture: which number is on the x axis, which lines there are, and that it is drawn."""

import pytest

from hyla_lm.tools.sweep.figure import draw, is_geometric, layout_of
from hyla_lm.tools.sweep.summary import Summary
from tests.sweeps.conftest import RATES, Plan
from tests.sweeps.test_summary import found

PNG = b"\x89PNG"
ATTENTION = "ModelConfig.attention=hyla,softmax"


def summary(planned: Plan, *over: str, points: tuple[list[str], ...] = ()) -> Summary:
    runs = planned(*over, points=points)
    return found(runs, [float(number) for number, _ in enumerate(runs)])


def test_one_number_is_a_line(planned: Plan) -> None:
    layout = layout_of(summary(planned).standings)
    assert layout is not None and layout.key == "OptimizerConfig.learning_rate"
    assert list(layout.lines) == [""] and layout.numbers == [0.1, 0.2, 0.3]
    assert [one.mean for _, one in layout.lines[""]] == [0.5, 2.5, 4.5]


def test_of_two_the_number_of_more_values_is_below_and_the_other_makes_lines(planned: Plan) -> None:
    steps = "TrainConfig.steps=10,20"
    layout = layout_of(summary(planned, *RATES, steps).standings)
    assert layout is not None and layout.key == "OptimizerConfig.learning_rate"
    assert list(layout.lines) == ["steps 10", "steps 20"]
    layout = layout_of(summary(planned, ATTENTION, *RATES).standings)
    assert layout is not None and list(layout.lines) == ["attention hyla", "attention softmax"]


def test_without_a_number_in_all_points_there_is_a_ranking(planned: Plan) -> None:
    assert layout_of(summary(planned, ATTENTION).standings) is None
    points = (["OptimizerConfig.learning_rate=0.1"], ["TrainConfig.steps=20"])
    assert layout_of(summary(planned, points=points).standings) is None


@pytest.mark.parametrize(
    ("numbers", "answer"),
    [
        ([1e-3, 1e-2, 1e-1], True),
        ([3e-3, 1e-2, 3e-2], True),
        ([128, 256, 512, 1024], True),
        ([1, 2, 3, 4], False),
        ([0.0, 0.1, 1.0], False),
        ([1, 10], True),
        ([1, 2], False),
    ],
)
def test_numbers_that_grow_by_a_factor_get_a_log_axis(numbers: list[float], answer: bool) -> None:
    assert is_geometric(numbers) is answer


def test_every_kind_of_picture_is_drawn(planned: Plan) -> None:
    assert draw(summary(planned, *RATES, ATTENTION)).startswith(PNG)
    assert draw(summary(planned, ATTENTION)).startswith(PNG)
    failed = found(planned(), [1.0, "nan", "nan", "nan", None, None])
    assert draw(failed).startswith(PNG)
