"""The commands of the launcher: what they run, what they say, and what they refuse."""

import shlex
import time

import pytest

from hyla_lm.tpu import cli
from hyla_lm.tpu.gcloud import TIMED_OUT, run_for_real
from tests.tpu.answers import BUSY, FINAL, HOST_AWAY, PASSING, PIP_FAILED
from tests.tpu.conftest import CODE, COMMIT, PLACE, FakeCloud


@pytest.mark.parametrize("name", FINAL)
def test_a_refusal_that_comes_twice_is_passed_on_and_nothing_is_billed(
    cloud: FakeCloud, name: str
) -> None:
    verb = "resources create" if ".create" in FINAL[name] else "resources describe"
    cloud.fault(verb, FINAL[name], times=2)
    code, printed = cloud.launch("supervise")
    last = printed.splitlines()[-1]
    assert code == 2 and last.startswith("hyla-lm tpu: gcloud: ") and cloud.is_empty
    assert name != "revoked" or "gcloud auth login" in last
    assert "so nothing is billed" in printed and len(printed.splitlines()) == 3


@pytest.mark.parametrize("name", PASSING)
def test_what_waiting_may_mend_is_tried_until_it_goes_and_said_once(
    cloud: FakeCloud, name: str
) -> None:
    cloud.fault("resources create", PASSING[name], times=30)
    cloud.plan("exit 0")
    code, printed = cloud.launch("supervise")
    assert code == 0 and printed.count("Trying again") == 1
    assert sum(cloud.waits) > 1800


def test_a_node_without_a_request_is_left_alone(cloud: FakeCloud) -> None:
    cloud.set(node="READY")
    code, printed = cloud.launch("supervise")
    assert code == 2 and "choose another --name" in printed and "is billed" in printed
    assert cloud.state["node"] == "READY" and cloud.count("(delete|create) hyla") == 0


def test_delete_deletes_both_and_is_fine_with_nothing(active: FakeCloud) -> None:
    active.set(delete_leaves_node=True)
    active.fault("resources delete", BUSY, times=2)
    for _ in range(2):
        code, printed = active.launch("delete")
        assert code == 0 and active.is_empty and "nothing is billed" in printed


def test_delete_that_is_not_allowed_says_what_is_billed(active: FakeCloud) -> None:
    active.fault("resources delete", FINAL["denied"], times=2)
    code, printed = active.launch("delete")
    assert code == 2 and "Permission 'tpu.queuedResources" in printed and "is billed" in printed


def test_a_bill_that_cannot_be_seen_is_not_guessed(cloud: FakeCloud) -> None:
    cloud.fault("describe", FINAL["api_off"], times=99)
    code, printed = cloud.launch("delete")
    assert code == 0 and "could not be seen" in printed and "so nothing is billed" not in printed


def test_it_trains_on_every_host_with_the_command_that_was_asked_for(active: FakeCloud) -> None:
    active.set(hosts=4)
    active.plan("exit 0")
    active.fault("uv pip install", PIP_FAILED)
    flags = '--gin.Rows.train="gs://b/rows of text"', "--env=A=b c"
    code, printed = active.launch("supervise", *flags)
    assert code == 0 and "started on 4 hosts" in printed
    assert "No matching distribution found for uv" in printed
    for host in range(4):
        active.wait_for_attempt(host, 1)
    files = "--gin_file=gin/c4_50m_hyla.gin --gin_file=gin/c4_rows.gin"
    asked = f'train {files} --workdir={active.home}/run --gin.Rows.train="gs://b/rows of text"'
    assert (active.home / "arguments-3").read_text() == f"{asked}\n"
    assert active.count("--worker=all .*ServerAlive.*env JAX_PLATFORMS=tpu,cpu 'A=b c'") == 1


def test_status_says_what_slice_and_trainer_do(active: FakeCloud) -> None:
    assert "never started" in active.launch("status")[1]
    active.plan("save 40; exit 2")
    active.launch("supervise", f"--workdir={active.home}/my run")
    code, printed = active.launch("status")
    assert code == 0 and "hyla  ACTIVE, node READY\n" in printed
    assert "exited with status 2, newest checkpoint 40" in printed
    active.fault("ssh .*--worker=all", HOST_AWAY, code=255)
    printed = active.launch("status")[1]
    assert "host 1  does not answer" in printed and "host 0" not in printed
    active.set(resource="FAILED", node=None, failure="no more capacity")
    assert "FAILED: no more capacity" in active.launch("status")[1]


def test_logs_show_the_log_of_the_chosen_host(active: FakeCloud) -> None:
    active.set(hosts=2)
    active.plan('echo "this is $HOST"; exit 0')
    active.launch("supervise")
    active.wait_for(lambda: '"exited"' in active.trainer(1))
    assert "this is 1" in active.launch("logs", "--no-follow", "--worker=1")[1]
    code, printed = active.launch("logs", "--worker=4")
    assert code == 2 and "--worker=4 is no host of hyla: give 0 to 3" in printed


MISTAKES = {
    "--revision=main": "must be a whole commit",
    "--repository=": "--repository is missing",
    "--env=oops": "must be NAME=VALUE",
    "--name=Hyla": "must be at most 40 of a-z",
    "--workdir=": "--workdir is missing",
    "@no-such-file": "cannot be read",
    # A program would read these as options.
    "--repository=--upload-pack=touch x": "--repository=",
    "--gin_file=-g": "--gin_file=",
    "--subnetwork=a\nb": "--subnetwork=",
}


@pytest.mark.parametrize("flag", MISTAKES)
def test_a_mistake_is_one_sentence_before_anything_is_done(cloud: FakeCloud, flag: str) -> None:
    code, printed = cloud.launch("supervise", flag)
    assert code == 2 and printed.startswith("hyla-lm tpu: ") and MISTAKES[flag] in printed
    assert cloud.state["calls"] == []


def test_gcloud_that_is_not_there(monkeypatch: pytest.MonkeyPatch, capfd) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert cli.main(["status", *PLACE], lambda _: None) == 2
    assert "gcloud does not start" in capfd.readouterr().err


def test_a_shell_can_run_what_a_dry_run_prints(cloud: FakeCloud) -> None:
    cloud.set(hosts=2)
    file = cloud.home / "job.args"
    rows = """--gin.Rows.train='"gs://my-bucket/c4-512/train"'"""
    flags = [*PLACE, *CODE, "--gin_file=gin/a.gin", f"--workdir={cloud.home}/run", rows]
    file.write_text("# the job\n" + "\n".join([*flags, "--spot"]))
    assert cli.main(["supervise", f"@{file}", "--dry-run"]) == 0
    lines = cloud.capture.readouterr().out.splitlines()
    assert len(lines) == 3 and cloud.state["calls"] == []
    for line in lines:
        assert not cloud.gcloud(shlex.split(line), limit=60).code
        cloud.set(node="READY")
    for host in (0, 1):
        cloud.wait_for_attempt(host, 1)
    assert (cloud.home / "arguments-1").read_text().endswith(f"{rows.strip()}\n")
    assert COMMIT in " ".join(lines) and cloud.count("resources create hyla .*--spot") == 1


def test_two_slices_are_asked_for_and_trained_on_together(cloud: FakeCloud) -> None:
    flags = ["--slices=2", "--internal-ips"]
    lines = cloud.launch("supervise", "--dry-run", *flags)[1].splitlines()
    [create] = [line for line in lines if " create " in line]
    assert "--node-count=2 --node-prefix=hyla" in create and "--node-id" not in create
    starts = [line for line in lines if "worker start" in line]
    assert all("gcloud alpha" in line and "--tunnel-through-iap" in line for line in starts)
    assert ["ssh hyla-0" in line for line in starts] == [True, False]
    cloud.set(resource="ACTIVE", node="READY", hosts=4)
    cloud.launch("logs", "--no-follow", "--worker=5", *flags)
    assert cloud.count("ssh hyla-1 --worker=1") == 1


def test_no_secret_is_printed(active: FakeCloud) -> None:
    flags = ["--repository=https://me:pass12@example.com/a.git", "--env=HF_TOKEN=hush hush"]
    flags += ["--env=wandb_api_key=quiet1"]
    active.plan("exit 0")
    active.fault("ssh .*git", "fatal: https://me:pass12@example.com, quiet1, hush hush\n", times=3)
    for more in ([], ["--dry-run"], ["--env=TOKEN silent"], ["--envs=A_SECRET=silent"]):
        try:
            printed = active.launch("supervise", *flags, *more)[1]
        except SystemExit:
            captured = active.capture.readouterr()
            printed = captured.out + captured.err
        assert printed
        for secret in ("pass12", "hush", "quiet1", "silent"):
            assert secret not in printed, more


def test_a_command_that_hangs_is_ended_with_all_that_it_started() -> None:
    started = time.monotonic()
    done = run_for_real(["sh", "-c", "sleep 31.4159 & sleep 60"], limit=0.2)
    assert done.code == TIMED_OUT and "no answer in 0 s" in done.errors
    assert time.monotonic() - started < 5
