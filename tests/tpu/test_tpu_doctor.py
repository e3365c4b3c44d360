"""The doctor: each check against a host that is well and one that is not."""

import json
import os
import subprocess
from argparse import Namespace
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest

from hyla_lm.storage import as_path
from hyla_lm.tpu import doctor
from hyla_lm.tpu.doctor import FAIL, OK, WARN, Check
from hyla_lm.tpu.job import Slice
from tests.run.buckets.fake_bucket import FakeBucket, lead_here

POD = Slice("v5litepod-16")


@pytest.fixture
def host(tmp_path: Path) -> Callable[[str], Check]:
    """Looks at a host with a process 41 that has a file open."""

    def look(target: str) -> Check:
        process = tmp_path / "proc" / "41"
        (process / "fd").mkdir(parents=True)
        (process / "cmdline").write_text("python\0-m\0hyla_lm\0")
        (process / "fd" / "3").symlink_to(target)
        (tmp_path / "dev" / "vfio").mkdir(parents=True)
        (tmp_path / "dev" / "vfio" / "0").touch()
        return doctor.check_holders(tmp_path / "proc", tmp_path / "dev")

    return look


@pytest.mark.parametrize("device", ["/dev/accel0", "/dev/vfio/0"])
def test_the_process_that_holds_a_chip_is_named(host: Callable, device: str) -> None:
    found = host(device)
    assert found.level == FAIL and "41 python -m hyla_lm" in found.found
    assert "sudo kill 41" in found.advice


def test_chips_that_nobody_holds(host: Callable, tmp_path: Path) -> None:
    assert host("/dev/null").level == OK
    assert "no /dev/accel*" in doctor.check_holders(tmp_path, tmp_path / "nothing").found


def test_versions() -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    assert "hyla_lm 1.0, jax 1.0" in doctor.check_versions(lambda _: "1.0").found
    found = doctor.check_versions(missing)
    assert found.level == FAIL and "pip install -e '.[tpu,gcs]'" in found.advice


@pytest.mark.parametrize(
    ("accelerator", "counts", "level"),
    [
        ("v5litepod-16", (4, 16), OK),
        ("v5litepod-8", (8, 8), OK),
        ("v5litepod-16", (4, 4), FAIL),
        ("v5litepod-16", (1, 1), FAIL),
    ],
)
def test_devices(accelerator: str, counts: tuple[int, int], level: str) -> None:
    assert doctor.check_devices(Slice(accelerator), lambda: counts).level == level


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (subprocess.TimeoutExpired("python", 180), "no answer in 180 s"),
        (subprocess.CalledProcessError(1, "python", stderr="a\nno TPU here"), "no TPU here"),
        (ValueError("not enough values"), "not enough values"),
    ],
)
def test_devices_that_do_not_answer(error: Exception, words: str) -> None:
    def count() -> tuple[int, int]:
        raise error

    found = doctor.check_devices(POD, count)
    assert found.level == FAIL and found.found == words and "all hosts at once" in found.advice


def test_bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.check_bucket(str(tmp_path / "run")).level == OK
    assert list((tmp_path / "run").iterdir()) == []
    (tmp_path / "file").touch()
    found = doctor.check_bucket(str(tmp_path / "file"))
    assert found.level == FAIL and "roles/storage.objectAdmin" in found.advice
    monkeypatch.setattr(type(as_path(tmp_path)), "read_text", lambda *_: "stale")
    assert "another text" in doctor.check_bucket(str(tmp_path / "run")).found


def test_a_bucket_must_be_one_that_orbax_may_look_at(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gcsfs", reason="buckets need pip install 'hyla_lm[gcs]'")
    with FakeBucket() as store:
        lead_here(store, monkeypatch)
        found = doctor.check_bucket("gs://bucket/run")
        assert found.level == FAIL and "roles/storage.legacyBucketReader" in found.advice
        store.buckets_can_be_seen = True
        assert doctor.check_bucket("gs://bucket/run").level == OK
        assert store.objects == {}


@pytest.mark.parametrize(
    ("skew", "level"), [(0, OK), (-4, OK), (6, WARN), (-59, WARN), (61, FAIL), (-3600, FAIL)]
)
def test_clock(skew: float, level: str) -> None:
    found = doctor.check_clock(lambda: 1000.0, lambda: 1000.0 + skew)
    assert (found.level, found.found) == (level, f"{skew:+.0f} s")


def test_clock_without_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "CLOCKS", ("http://127.0.0.1:1/",))
    found = doctor.check_clock()
    assert found.level == WARN and "unknown" in found.found


@pytest.mark.parametrize(("free", "level"), [(50e9, OK), (10e9, WARN), (1e9, FAIL)])
def test_disk(free: int, level: str, tmp_path: Path) -> None:
    assert doctor.check_disk(tmp_path, lambda _: free).level == level
    assert doctor.check_disk(tmp_path).found.endswith(str(tmp_path))


@pytest.mark.parametrize("level", [OK, WARN, FAIL])
def test_table_json_and_status(level: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = [Check("disk", level, "1 GB", "Delete."), Check("clock", OK, "+0 s")]
    assert doctor.main([], lambda _: found) == (level == FAIL)
    table = capsys.readouterr().out
    assert f"{level:<5} disk     1 GB\n" in table and "-> Delete." in table
    assert doctor.main(["--json"], lambda _: found) == (level == FAIL)
    printed = json.loads(capsys.readouterr().out)
    assert printed["checks"][0] == {
        **{"name": "disk", "level": level, "found": "1 GB", "advice": "Delete."}
    }


def test_all_checks_are_done(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "count_devices", lambda: (4, 16))
    monkeypatch.setattr(doctor, "ask_time", lambda: None)
    options = Namespace(accelerator_type="v5litepod-16", bucket=str(tmp_path))
    names = [check.name for check in doctor.look_at_host(options)]
    assert names == ["chips", "versions", "devices", "bucket", "clock", "disk"]
    assert os.listdir(tmp_path) == []
    assert doctor.main(["--accelerator-type=v4-8"]) == 2
