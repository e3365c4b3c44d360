"""What gcloud says when something is wrong: tests/tpu/answers/*.txt, each with its source."""

import re
from pathlib import Path

HERE = Path(__file__).parent / "answers"


def answer(name: str) -> str:
    """What gcloud writes to stderr, without the lines on where the words are from."""
    lines = (HERE / f"{name}.txt").read_text().splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("# "))


def description(name: str) -> str:
    """What gcloud prints of a request, by the fields of the TPU API's reference."""
    return (HERE / f"{name}.json").read_text()


def kind_names() -> dict[str, str]:
    """The kind that each answer is."""
    texts = {path.stem: path.read_text() for path in sorted(HERE.glob("*.txt"))}
    return {name: re.findall(r"^# kind: (\w+)$", text, re.M)[0] for name, text in texts.items()}
