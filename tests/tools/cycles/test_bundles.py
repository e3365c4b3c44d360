"""The counter of TPU cycles runs loops, guards and delay slots, and refuses what it cannot know."""

from pathlib import Path

import pytest

from hyla_lm.tools.cycles.bundles import Dumps, run
from hyla_lm.tools.cycles.hlo import Program
from hyla_lm.tools.cycles.kernels import kernel_cycles

LOOP = """
     0   :  { %s1_s0 = smov 0 /* a comment /* in a comment */ { } */ }
   0x1 LB: > { %s2_s0 = sphi %s1_s0, %s3_s0  ;;  %s9_s9 = sld [smem:[#allocation7_spill]] }
   0x2   : > { %s3_s0 = sadd.s32 1, %s2_s0 }
   0x3   : > { %p1_p0 = scmp.ge.s32.totalorder %s3_s0, LIMIT }
   0x4   : > { %9 = sbr.rel (!%p1_p0) target bundleno = 1 (0x1), region = 3 }
   0x5   : > { %v1_v1 = vadd.f32 %v1_v1, %v1_v1 }
   0x6   : > {  }
   0x7   : > {  }
   0x8   : > { %s5_s4 = smov (!%p1_p0, %s3_s0), 9 }
   0x9   :  { %10 = sst [smem:[#allocation8]] %s5_s4 }
   0xa   :  { %s6_s5 = sld [smem:[#allocation8]] }
   0xb   :  { %p2_p1 = scmp.eq.s32.totalorder %s6_s5, LIMIT }
   0xc   :  { %11 = sbr.rel (%p2_p1) target bundleno = 18 (0x12), region = 4 }
   0xd   :  {  }
   0xe   :  {  }
   0xf   :  {  }
   0x10   :  {  }
   0x11   :  { %s7_s6 = smov 1 }
   0x12   :  { %s8_s6 = smov 2 }
"""


def count(tmp_path: Path, text: str) -> list[int]:
    dump = tmp_path / "dump.txt"
    dump.write_text(text)
    return run(dump)


def test_loops_run_their_delay_slots_and_guards_and_memory_decide_branches(tmp_path: Path) -> None:
    counts = count(tmp_path, LOOP.replace("LIMIT", "5"))
    assert counts[0] == 1
    assert counts[1:9] == [5] * 8
    assert counts[0x11:] == [0, 1]


def test_a_load_whose_guard_does_not_hold_changes_nothing(tmp_path: Path) -> None:
    add = "{ %v1_v1 = vadd.f32 %v1_v1, %v1_v1 }"
    load = "{ %s11_s0 = sld [smem:[#allocation8]] (%p1_p0) }"
    known = "     0   :  { %10 = sst [smem:[#allocation8]] 5  ;; "
    text = LOOP.replace("LIMIT", "5").replace(add, load).replace("     0   :  {", known)
    counts = count(tmp_path, text)
    assert counts[1:9] == [5] * 8
    assert counts[0x11:] == [0, 1]


@pytest.mark.parametrize(
    ("text", "new", "reason"),
    [
        ("sadd.s32 1, %s2_s0", "sadd.s32 1, %s9_s9", "depends on data"),
        ("   0x6   : > {  }\n", "", "missing"),
    ],
)
def test_what_cannot_be_known_is_refused(tmp_path: Path, text: str, new: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        count(tmp_path, LOOP.replace(text, new).replace("LIMIT", "5"))


OPERAND = """
     0   :  { %s1_s0 = inlined_call_operand.<no memory space> [shape: s8[1,1,1], index: 3] }
   0x1   :  { %p1_p0 = scmp.le.s32.totalorder %s1_s0, 0 }
   0x2   :  { %1 = sbr.rel (%p1_p0) target bundleno = 8 (0x8), region = 1 }
   0x3   :  {  }
   0x4   :  {  }
   0x5   :  {  }
   0x6   :  {  }
   0x7   :  { %s2_s1 = smov 1 }
   0x8   :  { %s3_s1 = smov 2 }
"""


def test_an_operand_of_one_number_steers_a_branch(tmp_path: Path) -> None:
    dump = tmp_path / "dump.txt"
    dump.write_text(OPERAND)
    assert run(dump, {3: 0})[7:] == [0, 1]
    assert run(dump, {3: 1})[7:] == [1, 1]
    with pytest.raises(ValueError, match="depends on data"):
        run(dump)


def test_dumps_are_found_by_name_and_by_equal_code(tmp_path: Path) -> None:
    (tmp_path / "17-fusion.1-01-packed-bundles-post-ra.txt").write_text("   0 : { }\n 0x1 : { }\n")
    (tmp_path / "17-fusion.1-00-schedule-analysis_packed-bundles-post-ra.txt").write_text("")
    (tmp_path / "18-data-01-packed-bundles-post-ra.txt").write_text(OPERAND)
    (tmp_path / "19-TLP-00-deduplication-map.txt").write_text(
        "key:fusion.1\n  fusion.1\n  fusion.7\n"
    )
    dumps = Dumps(tmp_path)
    assert (dumps.cycles("fusion.1"), dumps.cycles("fusion.7")) == (2, 2)
    assert dumps.cycles("fusion.8") is None
    assert dumps.cycles("data") is None
    assert dumps.cycles("data", {3: 1}) == 9


def test_kernels_count_in_each_run_by_their_constant_operands(tmp_path: Path) -> None:
    """One kernel of 9 bundles in a loop of 4 trips, and one whose branch is not known."""
    (tmp_path / "1-data-01-packed-bundles-post-ra.txt").write_text(OPERAND)
    (tmp_path / "2-TLP-00-deduplication-map.txt").write_text("key:data\n  data\n  unknown\n")
    call = 'custom_call_target="tpu_custom_call"\n'
    hlo = Program(
        "%cond (s: (s32[])) -> pred[] {\n  %s = (s32[]) parameter(0)\n}\n\n"
        "%body (t: (s32[])) -> (s32[]) {\n  %t = (s32[]) parameter(0)\n"
        "  %one = s32[1]{0} constant({1})\n"
        f"  %data = f32[8]{{0}} custom-call(%t, %t, %t, %one), {call}}}\n\n"
        "ENTRY %main (p: f32[8]) -> f32[8] {\n  %p = f32[8]{0} parameter(0)\n"
        f"  %unknown = f32[8]{{0}} custom-call(%p), {call}"
        "  %w = (s32[]) while(%p), condition=%cond, body=%body, "
        'backend_config={"known_trip_count":{"n":"4"}}\n}\n'
    )
    assert kernel_cycles(hlo, Dumps(tmp_path)) == 4 * 9
    assert [note.partition(" ")[0] for note in hlo.notes] == ["kernels"]
