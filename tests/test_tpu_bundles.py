"""The counter of TPU cycles runs loops, guards and delay slots, and refuses what it cannot know."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent / "benchmarks"))

from tpu_bundles import run

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


def test_a_loop_runs_its_delay_slots_every_time(tmp_path: Path) -> None:
    counts = count(tmp_path, LOOP.replace("LIMIT", "5"))
    assert counts[0] == 1
    assert counts[1:9] == [5] * 8


def test_values_through_memory_and_guards_decide_branches(tmp_path: Path) -> None:
    counts = count(tmp_path, LOOP.replace("LIMIT", "5"))
    assert counts[0x11:] == [0, 1]


def test_a_branch_on_data_is_refused(tmp_path: Path) -> None:
    unknown = LOOP.replace("sadd.s32 1, %s2_s0", "sadd.s32 1, %s9_s9").replace("LIMIT", "5")
    with pytest.raises(ValueError, match="depends on data"):
        count(tmp_path, unknown)


def test_a_missing_bundle_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="missing"):
        count(tmp_path, LOOP.replace("   0x6   : > {  }\n", ""))
