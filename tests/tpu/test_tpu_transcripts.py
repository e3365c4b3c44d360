"""Every command under --dry-run, word for word: python -m tests.tpu.test_tpu_transcripts rewrites.

Each transcript is also run by a shell against the stand-in for gcloud, as a person would paste it.
"""

import contextlib
import io
import subprocess
from pathlib import Path

import pytest

from hyla_lm.tpu import gke, launch
from tests.tpu.conftest import CODE, COMMIT, PLACE, FakeCloud

HERE = Path(__file__).parent / "transcripts"
ROWS = """--gin.Rows.train='"gs://my-bucket/c4-512/train"'"""
FILES = ["--gin_file=gin/c4_50m_hyla.gin", "--gin_file=gin/c4_rows.gin"]
TRAINING = [*FILES, "--workdir=gs://my-bucket/runs/hyla", ROWS]
COMMANDS = ("create", "doctor", "run", "status", "logs", "stop", "resume", "supervise", "delete")
LAUNCHES = {
    "single_host": [*CODE, "--accelerator-type=v5litepod-8"],
    "multi_host": CODE,
    "spot": [
        *("--spot", "--archive=gs://my-bucket/code/abc.tar.gz", "--env=A=b c", "--python=3.13"),
        *("--network=vpc", "--subnetwork=sub", "--internal-ips", "--runtime-version=v2-x"),
        "--service-account=trainer@my-project.iam.gserviceaccount.com",
    ],
    "best_effort": [*CODE, "--best-effort"],
    "reserved": [*CODE, "--reserved", "--valid-for=6h"],
    "tunnel": [*CODE, "--internal-ips", "--tunnel-through-iap"],
    "slices": [*CODE, "--slices=2", "--spot", "--valid-for=2d"],
}
MORE = {
    ("multi_host", "logs"): ["--worker=1"],
    ("slices", "logs"): ["--worker=5", "--no-follow"],
    ("reserved", "supervise"): ["--delete-after"],
}
JOBSETS = {
    "gke_single_host": ["--accelerator-type=v5litepod-4"],
    "gke_multi_host": [],
    "gke_spot": ["--spot", "--namespace=ml", "--env=A=b: c", "--max-restarts=3"],
}


def launched(name: str) -> str:
    """What all commands print, each under its name."""
    parts = []
    for command in COMMANDS:
        more = MORE.get((name, command), [])
        with contextlib.redirect_stdout(io.StringIO()) as out:
            flags = [*PLACE, *LAUNCHES[name], *TRAINING, *more]
            assert launch.main([command, *flags, "--dry-run"]) == 0
        parts.append(f"# {command}\n{out.getvalue()}")
    return "\n".join(parts)


def rendered(name: str) -> str:
    image = "--image=us-docker.pkg.dev/my-project/hyla/hyla-lm:1"
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert gke.main(["--name=hyla", image, *TRAINING, *JOBSETS[name], "--dry-run"]) == 0
    return out.getvalue()


def transcripts() -> dict[str, str]:
    texts = {f"{name}.txt": launched(name) for name in LAUNCHES}
    return texts | {f"{name}.yaml": rendered(name) for name in JOBSETS}


@pytest.fixture
def no_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A PATH with nothing on it: whoever runs a program fails."""
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.mark.usefixtures("no_programs")
def test_what_is_printed_has_not_changed() -> None:
    texts = transcripts()
    assert {path.name for path in HERE.iterdir()} == set(texts)
    for name, text in texts.items():
        assert text == (HERE / name).read_text(), f"{name}: rewrite it if the change is meant"


def test_what_is_printed_does_it(cloud: FakeCloud) -> None:
    cloud.set(hosts=2)
    flags = [*PLACE, *CODE, "--gin_file=gin/a.gin", f"--workdir={cloud.home}/run", ROWS]
    launch.main(["resume", *flags, "--dry-run"])
    lines = cloud.capture.readouterr().out.splitlines()
    for line in lines:
        subprocess.run(["sh", "-c", line], capture_output=True, check="describe" not in line)
    for host in (0, 1):
        cloud.wait_for_attempt(host, 1)
    assert (cloud.home / "arguments-1").read_text().endswith(f"{ROWS.strip()}\n")
    assert len(cloud.state["calls"]) == len(lines)
    assert COMMIT in " ".join(lines)


if __name__ == "__main__":
    for file_name, content in transcripts().items():
        (HERE / file_name).write_text(content)
