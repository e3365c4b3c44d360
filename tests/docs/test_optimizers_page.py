"""The page on optimizers has the figures of its results, and they are those of the runs."""

import json
from pathlib import Path

from docs.studies.quickstart_optimizers import RATES, SEEDS, STEPS, main, with_tables

DOCS = Path(__file__).parents[2] / "docs"
RESULTS = DOCS / "results" / "quickstart_optimizers"
PAGE = "Before.\n\n<!-- tables -->\nold\n<!-- end of tables -->\n\nAfter.\n"


def test_the_page_has_the_tables_of_the_results() -> None:
    page = (DOCS / "optimizers.md").read_text()
    assert with_tables(page, RESULTS) == page


def test_tables_are_made_of_the_runs(tmp_path: Path) -> None:
    """The best run of seed 0 chooses the rate; one that went wrong has no bits."""
    pair = {"optimizer": "muon", "schedule": "wsd", "steps": STEPS}
    tuned = [(rate, 0, bits) for rate, bits in zip(RATES, (2.25, 2.125, None, 2.5), strict=True)]
    chosen = [(RATES[1], seed, 1.7 + seed) for seed in SEEDS[1:]]
    lines = [
        {**pair, "learning_rate": rate, "seed": seed, "bits_per_byte": bits}
        for rate, seed, bits in (*tuned, *chosen)
    ]
    (tmp_path / "runs.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    times = {"processor_milliseconds": {"adamw": 100.0, "muon": 150.0}, "ratio": 1.5}
    (tmp_path / "step_time.json").write_text(json.dumps(times))
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    assert main([f"--page={page}", f"--output={tmp_path}"]) == 0
    text = page.read_text()
    assert "old" not in text and text.startswith("Before.") and text.endswith("After.\n")
    name = "| Muon + warmup-stable-decay |"
    assert f"{name} 2.250 | 2.125 | inf | 2.500 |" in text
    assert f"{name} 0.005 | 2.125 | 2.700 | 3.700 | **2.842** | 1.575 |" in text
    assert "| ms of processor a step | 100.0 | 150.0 | **1.5** |" in text
    assert with_tables(text, tmp_path) == text
