"""docs/curves.md has each tag that is described, with its sentence."""

import re
from pathlib import Path

from hyla_lm.logs.sinks import TAGS, description

PAGE = (Path(__file__).parents[2] / "docs" / "curves.md").read_text()
ROW = re.compile(r"^\| `([a-z]+/[^`]+)` \| ([^|]+) \| [^|]+ \| [^|]+ \|$", re.M)


def test_the_page_has_the_sentence_of_every_tag() -> None:
    assert ROW.findall(PAGE) == list(TAGS.items())


def test_a_tag_has_the_sentence_of_the_first_pattern_that_fits() -> None:
    for pattern, text in TAGS.items():
        of_tag = description(pattern.replace("*", "layer_0"))
        assert of_tag == text, "an earlier pattern hides it"
    assert description("validation/held_out_r2") == description("validation/anything")
    assert description("elsewhere/figure") == ""
