"""A cloud on this machine: stand-ins for gcloud and for what the hosts have on their PATH."""

import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from hyla_lm.tpu import cli
from hyla_lm.tpu.gcloud import Done
from tests.tpu import fake_gcloud

ROOT = Path(__file__).parents[2]
COMMIT = "0123456789abcdef0123456789abcdef01234567"
PLACE = ["--name=hyla", "--project=my-project", "--zone=us-west4-a"]
CODE = ["--repository=https://example.com/hyla_lm.git", f"--revision={COMMIT}"]
HOST_PROGRAMS = {
    # The package as it is when it is installed: its modules are below hyla_lm.
    "git": f"""
[ "$3" = checkout ] || exit 0
mkdir -p "$2/hyla_lm"
ln -s "{ROOT}"/hyla_lm/* "{ROOT}/tpu" "$2/hyla_lm" """,
    "python3": f"""
[ "$2 $3" = "uv venv" ] || exit 0
mkdir -p "$7/bin"
ln -s "$CLOUD/host_bin/hyla-lm" "$7/bin/hyla-lm"
printf '#!/bin/sh\\nexec {sys.executable} -S "$@"\\n' > "$7/bin/python"
chmod +x "$7/bin/python" """,
    # Each attempt does what its line of the file `plan` says.
    "hyla-lm": """
echo "$@" > "$CLOUD/arguments-$HOST"
echo attempt >> "$CLOUD/attempts-$HOST"
for argument; do case "$argument" in --workdir=*) workdir="${argument#*=}";; esac; done
save() { mkdir -p "$workdir"/checkpoints/"$1"; }
hang() { trap 'exit 75' TERM; sleep 60 & wait; }
eval "$(sed -n "$(wc -l < "$CLOUD/attempts-$HOST")p" "$CLOUD/plan")" """,
}
FRESH: dict[str, Any] = {
    **{"resource": None, "node": None, "hosts": 1, "grants": ["ACTIVE"], "faults": []},
    **{"delete_leaves_node": False, "failure": "", "calls": []},
}


class FakeCloud:
    """What a test does to the cloud and sees of it."""

    def __init__(self, home: Path, capture: pytest.CaptureFixture[str]):
        self.home, self.capture = home, capture
        self.file = home / "state.json"
        self.waits: list[float] = []
        self.interrupted_sleeps = 0
        self.file.write_text(json.dumps(FRESH))
        self.plan("hang")

    def gcloud(
        self, argv: Sequence[str], *, stream: bool = False, limit: float | None = None
    ) -> Done:
        """Stands in for `run_for_real`; thousands of calls would be processes."""
        assert argv[0] == "gcloud" and limit is not None, argv
        done = fake_gcloud.Cloud(self.file, limit).answer(argv[1:])
        if stream:
            print(done.output)
        return done

    @property
    def state(self) -> dict[str, Any]:
        return json.loads(self.file.read_text())

    def set(self, **changes: Any) -> None:
        self.file.write_text(json.dumps({**self.state, **changes}))

    def fault(self, on: str, stderr: str = "", **more: Any) -> None:
        """The next call that `on` matches fails, or changes the cloud."""
        code = {"code": 1} if stderr else {}
        self.set(faults=[*self.state["faults"], {"on": on, "stderr": stderr, **code, **more}])

    def plan(self, *attempts: str) -> None:
        """What the trainer does at its first start, its second, and so on; then it exits with 0."""
        (self.home / "plan").write_text("".join(f"{line}\n" for line in attempts))

    def attempts(self, host: int = 0) -> int:
        path = self.home / f"attempts-{host}"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def count(self, pattern: str) -> int:
        """How many calls of gcloud match."""
        return sum(bool(re.search(pattern, " ".join(call))) for call in self.state["calls"])

    def launch(self, command: str, *flags: str) -> tuple[int, str]:
        """Status and everything printed, of the launcher with the options of a job."""
        files = ["--gin_file=gin/c4_50m_hyla.gin", "--gin_file=gin/c4_rows.gin"]
        training = [*files, f"--workdir={self.home}/run"]
        code = cli.main([command, *PLACE, *CODE, *training, *flags], self.sleep, self.clock)
        printed = self.capture.readouterr()
        return code, printed.out + printed.err

    def clock(self) -> float:
        """The seconds that were slept."""
        return sum(self.waits)

    def sleep(self, seconds: float) -> None:
        """Returns at once, or when the first host's trainer has ended if that is soon."""
        self.waits.append(seconds)
        if self.interrupted_sleeps:
            self.interrupted_sleeps -= 1
            raise KeyboardInterrupt
        deadline = time.monotonic() + 0.1
        while '"running"' in self.trainer(0) and time.monotonic() < deadline:
            time.sleep(0.01)

    def trainer(self, host: int) -> str:
        path = self.home / f"host-{host}/hyla_lm/jobs/hyla/status.json"
        return path.read_text() if path.exists() else ""

    @property
    def is_empty(self) -> bool:
        return self.state["resource"] is None and self.state["node"] is None

    def wait_for_attempt(self, host: int, number: int) -> None:
        """Until the trainer of a host has been started so many times, and has begun."""
        self.wait_for(lambda: self.attempts(host) == number and "state" in self.trainer(host))

    def wait_for(self, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 20
        while not is_so():
            assert time.monotonic() < deadline
            time.sleep(0.01)


def write_program(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def cloud(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Any:
    """An empty cloud; its trainers are ended with the test."""
    for name, text in HOST_PROGRAMS.items():
        write_program(tmp_path / "host_bin" / name, text)
    fake = FakeCloud(tmp_path, capfd)
    monkeypatch.setattr(cli, "run_for_real", fake.gcloud)
    yield fake
    fake_gcloud.Cloud(fake.file).lose_hosts()


@pytest.fixture
def active(cloud: FakeCloud) -> FakeCloud:
    """A cloud whose slice is ready."""
    cloud.set(resource="ACTIVE", node="READY")
    return cloud
