"""How often each instruction of a compiled program runs, by the text of small programs."""

import pytest

from hyla_lm.tools.cycles.hlo import Program


def program(start: str, limit: str, step: str, *, direction: str = "LT", stated: str = "") -> str:
    return f"""HloModule counted

%condition (c: (s32[], f32[8])) -> pred[] {{
  %c = (s32[], f32[8]) parameter(0)
  %i = s32[]{{:T(128)}} get-tuple-element(%c), index=0
  %limit = s32[]{{:T(128)}} constant({limit})
  ROOT %more = pred[] compare(%i, %limit), direction={direction}
}}

%body (b: (s32[], f32[8])) -> (s32[], f32[8]) {{
  %b = (s32[], f32[8]) parameter(0)
  %j = s32[] get-tuple-element(%b), index=0
  %k = s32[] copy(%j)
  %x = f32[8] get-tuple-element(%b), index=1
  %y = f32[8] negate(%x)
  %step = s32[] constant({step})
  %next = s32[] add(%k, %step)
  ROOT %r = (s32[], f32[8]) tuple(%next, %y)
}}

ENTRY %main (p: f32[8]) -> f32[8] {{
  %p = f32[8] parameter(0)
  %start = s32[] constant({start})
  %copied = s32[] copy(%start)
  %t = (s32[], f32[8]) tuple(%copied, %p)
  %w = (s32[], f32[8]) while(%t), condition=%condition, body=%body{stated}
  ROOT %o = f32[8] get-tuple-element(%w), index=1
}}
"""


def times(hlo: Program, name: str) -> int:
    [count] = [times for x, _, times in hlo.walk() if x.name == name]
    return count


@pytest.mark.parametrize(
    ("start", "limit", "step", "trips"),
    [("0", "7", "2", 4), ("3", "11", "4", 2), ("6", "6", "1", 0)],
)
def test_a_loop_runs_as_often_as_its_counter_says(
    start: str, limit: str, step: str, trips: int
) -> None:
    hlo = Program(program(start, limit, step))
    assert times(hlo, "y") == trips
    assert hlo.notes == []


def test_trips_that_the_compiler_states_are_taken() -> None:
    stated = ', backend_config={"known_trip_count":{"n":"9"}}'
    assert times(Program(program("0", "6", "infeed", stated=stated)), "y") == 9


@pytest.mark.parametrize(
    "text",
    [
        program("0", "6", "1", direction="NE"),
        program("0", "6", "1").replace("add(%k, %step)", "add(%k, %k)"),
    ],
)
def test_a_loop_that_does_not_say_is_counted_once_with_a_note(text: str) -> None:
    hlo = Program(text)
    assert times(hlo, "y") == 1
    assert hlo.notes == ["loops whose trips are not known are counted once"]


@pytest.mark.parametrize("scope", ["rarely", "often"])
def test_a_branch_that_is_called_rare_does_not_run(scope: str) -> None:
    hlo = Program(
        "%no (n: f32[8]) -> f32[8] {\n  %n = f32[8]{0} parameter(0)\n}\n\n"
        "%yes (y: f32[8]) -> f32[8] {\n  %y = f32[8]{0} parameter(0)\n  %z = f32[8] negate(%y)\n}\n"
        "\nENTRY %main (p: f32[8]) -> f32[8] {\n  %p = f32[8]{0} parameter(0)\n"
        "  %c = f32[8]{0} conditional(%i, %p, %p), branch_computations={%yes, %no}, "
        f'metadata={{op_name="jit(train_step)/{scope}/cond"}}\n}}\n'
    )
    assert [x.name for x, _, _ in hlo.walk() if x.name == "z"] == ["z"] * (scope == "often")
