"""What --over and --point mean: values, a grid, a list, and the names of folders."""

import pytest

from hyla_lm.tools.sweep.points import Value, grid, split

RATE = "OptimizerConfig.learning_rate"
ATTENTION = "ModelConfig.attention"


def names(*over: str, points: tuple[list[str], ...] = ()) -> list[str]:
    return [point.name for point in grid(over, points)]


def test_several_over_are_a_grid_whose_last_changes_fastest() -> None:
    found = grid([f"{RATE}=3e-3,1e-2", f"{ATTENTION}=hyla,softmax"], [])
    assert [point.name for point in found] == [
        "learning_rate=0.003,attention=hyla",
        "learning_rate=0.003,attention=softmax",
        "learning_rate=0.01,attention=hyla",
        "learning_rate=0.01,attention=softmax",
    ]
    assert found[0].bindings == [f"{RATE}=3e-3", f"{ATTENTION}=hyla"]
    assert names() == ["unchanged"]


def test_points_are_a_list_and_over_is_a_grid_over_it() -> None:
    points = ([f"{RATE}=0.1", "ModelConfig.model_dim=64"], [f"{RATE}=0.2", "ModelConfig.mlp_dim=9"])
    assert names(points=points) == ["learning_rate=0.1,model_dim=64", "learning_rate=0.2,mlp_dim=9"]
    assert names("TrainConfig.steps=1,2", points=points[:1]) == [
        "learning_rate=0.1,model_dim=64,steps=1",
        "learning_rate=0.1,model_dim=64,steps=2",
    ]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("hyla,('hyla','softmax')", ["hyla", "('hyla','softmax')"]),
        ('"it\'s, so",None', ['"it\'s, so"', "None"]),
        ("@Rows(),%DATA", ["@Rows()", "%DATA"]),
    ],
)
def test_commas_in_brackets_and_quotes_belong_to_a_value(text: str, parts: list[str]) -> None:
    assert split(text) == parts


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("1e-2", "0.01"),
        ("1e6", "1000000"),
        ("('hyla', 'softmax')", "hyla+softmax"),
        ("@SampleCorpus()", "SampleCorpus"),
        ("a/b", "a_b-07f4401c"),
        ("x" * 99, "x" * 40 + "-dfcef126"),
    ],
)
def test_the_folder_of_a_value_stays_the_same(text: str, label: str) -> None:
    """Or a sweep that was begun would not find its runs."""
    assert Value("A.b", text).label == label


def test_a_gin_file_is_named_by_its_stem() -> None:
    found = grid(["gin_file=gin/quickstart.gin,gin/quickstart_softmax.gin"], [])
    assert [point.name for point in found] == [
        "gin_file=quickstart",
        "gin_file=quickstart_softmax",
    ]
    assert found[1].gin_files == ["gin/quickstart_softmax.gin"] and found[1].bindings == []
    labels = [Value("gin_file", path).label for path in ("a/model.gin", "b/model.gin")]
    assert labels[0] != labels[1] and all(label.startswith("model-") for label in labels)


def test_names_are_distinct() -> None:
    """Fields of one name by their class, and long names by a checksum."""
    assert names("LogConfig.every=1", "CheckpointConfig.every=2") == [
        "LogConfig.every=1,CheckpointConfig.every=2"
    ]
    over = [f"Class{n}.a_field_of_a_long_name_{n}=1" for n in range(20)]
    one, other = names(*over, "Z.z=1,2")
    assert one != other and max(len(one), len(other)) < 200
