"""The trips of every loop are those that its counter makes, however it counts."""

import pytest

from hyla_lm.tools.plan.hlo import Program


def program(
    start: str,
    limit: str,
    step: str,
    *,
    direction: str = "LT",
    move: str = "add",
    dtype: str = "s32",
    attributes: str = "",
) -> Program:
    return Program(f"""HloModule counted

%condition (c: ({dtype}[], f32[8])) -> pred[] {{
  %c = ({dtype}[], f32[8]) parameter(0)
  %i = {dtype}[] get-tuple-element(%c), index=0
  %limit = {dtype}[]{{:T(128)}} constant({limit})
  ROOT %more = pred[] compare(%i, %limit), direction={direction}
}}

%body (b: ({dtype}[], f32[8])) -> ({dtype}[], f32[8]) {{
  %b = ({dtype}[], f32[8]) parameter(0)
  %j = {dtype}[] get-tuple-element(%b), index=0
  %x = f32[8] get-tuple-element(%b), index=1
  %y = f32[8] negate(%x)
  %step = {dtype}[] constant({step})
  %next = {dtype}[] {move}(%j, %step)
  ROOT %r = ({dtype}[], f32[8]) tuple(%next, %y)
}}

ENTRY %main (p: f32[8]) -> f32[8] {{
  %p = f32[8] parameter(0)
  %start = {dtype}[] constant({start})
  %copied = {dtype}[] copy(%start)
  %t = ({dtype}[], f32[8]) tuple(%copied, %p)
  %w = ({dtype}[], f32[8]) while(%t), condition=%condition, body=%body{attributes}
  ROOT %o = f32[8] get-tuple-element(%w), index=1
}}
""")


def times(hlo: Program, name: str) -> int:
    (found,) = [times for x, _, times in hlo.walk() if x.name == name]
    return found


@pytest.mark.parametrize("dtype", ["s32", "u32"])
@pytest.mark.parametrize(
    ("start", "direction", "limit", "step", "trips"),
    [
        ("0", "LT", "6", "1", 6),  # 0 1 2 3 4 5
        ("0", "LT", "4", "2", 2),  # 0 2
        ("0", "LT", "7", "2", 4),  # 0 2 4 6
        ("3", "LT", "11", "4", 2),  # 3 7
        ("0", "LE", "6", "1", 7),  # 0 1 2 3 4 5 6
        ("1", "LE", "9", "3", 3),  # 1 4 7
        ("0", "NE", "6", "3", 2),  # 0 3
        ("6", "LT", "6", "1", 0),
    ],
)
def test_a_counter_that_goes_up(
    start: str, direction: str, limit: str, step: str, trips: int, dtype: str
) -> None:
    hlo = program(start, limit, step, direction=direction, dtype=dtype)
    assert times(hlo, "y") == trips
    assert list(hlo.notes) == []


@pytest.mark.parametrize(
    ("start", "direction", "limit", "step", "trips"),
    [
        ("5", "GT", "0", "1", 5),  # 5 4 3 2 1
        ("5", "GE", "0", "1", 6),  # 5 4 3 2 1 0
        ("8", "NE", "2", "2", 3),  # 8 6 4
    ],
)
def test_a_counter_that_goes_down(
    start: str, direction: str, limit: str, step: str, trips: int
) -> None:
    assert times(program(start, limit, step, direction=direction, move="subtract"), "y") == trips
    down = program(start, limit, f"-{step}", direction=direction)
    assert times(down, "y") == trips


def test_an_unsigned_counter_has_no_sign() -> None:
    """4294967294 and 4294967295, then 0; as s32 these are -2 and -1."""
    assert times(program("4294967294", "0", "1", direction="NE", dtype="u32"), "y") == 2
    assert times(program("-2", "0", "1", dtype="s32"), "y") == 2
    assert times(program("4294967294", "0", "1", dtype="u32"), "y") == 0


def test_what_the_compiler_states_is_taken() -> None:
    known = ', backend_config={"known_trip_count":{"n":"9"}}'
    assert times(program("0", "6", "1", attributes=known), "y") == 9


@pytest.mark.parametrize(
    "endless", [("0", "6", "0", "LT"), ("0", "5", "2", "NE"), ("0", "6", "infeed", "LT")]
)
def test_a_loop_that_does_not_say_is_counted_once_with_a_note(
    endless: tuple[str, str, str, str],
) -> None:
    start, limit, step, direction = endless
    hlo = program(start, limit, step, direction=direction)
    assert times(hlo, "y") == 1
    assert list(hlo.notes) == ["loops with trips not known, counted once (1: w)"]


NESTED = """HloModule windows

%inner_condition (c: (u32[], u32[], f32[8])) -> pred[] {
  %c = (u32[], u32[], f32[8]) parameter(0)
  %i = u32[] get-tuple-element(%c), index=0
  %limit = u32[] get-tuple-element(%c), index=1
  ROOT %more = pred[] fusion(%i, %limit), kind=kLoop, calls=%compared
}

%compared (p0: u32[], p1: u32[]) -> pred[] {
  %p1 = u32[] parameter(1)
  %p0 = u32[] parameter(0)
  ROOT %less = pred[] compare(%p0, %p1), direction=LT
}

%inner (b: (u32[], u32[], f32[8])) -> (u32[], u32[], f32[8]) {
  %b = (u32[], u32[], f32[8]) parameter(0)
  %j = u32[] get-tuple-element(%b), index=0
  %kept = u32[] get-tuple-element(%b), index=1
  %x = f32[8] get-tuple-element(%b), index=2
  %y = f32[8] collective-permute(%x), source_target_pairs={{0,1},{1,0}}
  %two = u32[] constant(2)
  %next = u32[] add(%j, %two)
  ROOT %r = (u32[], u32[], f32[8]) tuple(%next, %kept, %y)
}

%outer_condition (d: (s32[], u32[], f32[8])) -> pred[] {
  %d = (s32[], u32[], f32[8]) parameter(0)
  %k = s32[] get-tuple-element(%d), index=0
  %chunks = s32[] constant(3)
  ROOT %chunk = pred[] compare(%k, %chunks), direction=LT
}

%outer (e: (s32[], u32[], f32[8])) -> (s32[], u32[], f32[8]) {
  %e = (s32[], u32[], f32[8]) parameter(0)
  %n = s32[] get-tuple-element(%e), index=0
  %eight = u32[] get-tuple-element(%e), index=1
  %z = f32[8] get-tuple-element(%e), index=2
  %zero = u32[] constant(0)
  %s = (u32[], u32[], f32[8]) tuple(%zero, %eight, %z)
  %v = (u32[], u32[], f32[8]) while(%s), condition=%inner_condition, body=%inner
  %m = f32[8] get-tuple-element(%v), index=2
  %one = s32[] constant(1)
  %following = s32[] add(%n, %one)
  ROOT %q = (s32[], u32[], f32[8]) tuple(%following, %eight, %m)
}

ENTRY %main (p: f32[8]) -> f32[8] {
  %p = f32[8] parameter(0)
  %first = s32[] constant(0)
  %ways = u32[] constant(8)
  %t = (s32[], u32[], f32[8]) tuple(%first, %ways, %p)
  %w = (s32[], u32[], f32[8]) while(%t), condition=%outer_condition, body=%outer
  ROOT %o = f32[8] get-tuple-element(%w), index=2
}
"""


def test_a_limit_that_the_loop_around_carries_unchanged() -> None:
    """3 chunks of 0 2 4 6: a window of two pieces a turn."""
    hlo = Program(NESTED)
    assert times(hlo, "y") == 3 * 4
    assert list(hlo.notes) == []


def test_a_limit_that_the_loop_around_changes_is_not_known() -> None:
    hlo = Program(NESTED.replace("tuple(%following, %eight", "tuple(%following, %grown"))
    assert times(hlo, "y") == 3
    assert list(hlo.notes) == ["loops with trips not known, counted once (1: v)"]


def test_a_kind_has_one_note_with_its_places() -> None:
    hlo = program("0", "6", "0")
    for place in ("a", "b", "w", "c", "a"):
        hlo.notes.add("loops with trips not known, counted once", place)
    list(hlo.walk())
    assert list(hlo.notes) == ["loops with trips not known, counted once (4: a, b, w, ...)"]
