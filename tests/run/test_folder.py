"""The lines of a run's folder when it resumes."""

import json
from contextlib import closing
from pathlib import Path

from hyla_lm.run.folder import RunFolder
from tests.run_lines import measured


def test_lines_that_are_written_again_are_dropped(tmp_path: Path) -> None:
    tags = [(1, "train/x"), (1, "validation/x"), (2, "train/x"), (2, "validation/x")]
    lines = [{"step": step, tag: 1.0} for step, tag in [*tags, (2, "suites/a/r2")]]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    with closing(RunFolder(str(tmp_path))) as folder:
        folder.keep_lines_until(2, ["validation/"])
    assert measured(tmp_path) == [*lines[:3], lines[4]]
