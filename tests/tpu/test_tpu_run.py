"""The trainer on the hosts: started once, watched, stopped, and made to go on by the supervisor."""

import subprocess

import pytest

from hyla_lm import ending
from hyla_lm.errors import UserError, exit_status
from hyla_lm.tpu import launch
from hyla_lm.tpu.cloud import CONNECTION_WAITS, State
from hyla_lm.tpu.supervise import FIRST_WAIT_SECONDS, USER_MISTAKE, Action, decide
from hyla_lm.tpu.worker import PREEMPTED
from tests.tpu.answers import answer
from tests.tpu.conftest import CODE, COMMIT, PLACE, FakeCloud
from tests.tpu.test_tpu_faults import CONNECTION, DENIED, NO_CAPACITY, is_empty


@pytest.fixture
def active(cloud: FakeCloud) -> FakeCloud:
    cloud.set(resource="ACTIVE", node="READY")
    return cloud


def test_run_trains_on_every_host_with_the_command_that_was_asked_for(active: FakeCloud) -> None:
    active.set(hosts=4)
    code, printed = active.launch("run", '--gin.Rows.train="gs://b/rows of text"', "--env=A=b c")
    assert code == 0 and "started on 4 hosts" in printed
    for host in range(4):
        active.wait_for_attempt(host, 1)
    files = "--gin_file=gin/c4_50m_hyla.gin --gin_file=gin/c4_rows.gin"
    asked = f'train {files} --workdir={active.home}/run --gin.Rows.train="gs://b/rows of text"'
    assert (active.home / "arguments-3").read_text() == f"{asked}\n"
    assert active.count("env JAX_PLATFORMS=tpu,cpu 'A=b c'") == 1


def test_running_twice_trains_once(active: FakeCloud) -> None:
    active.launch("run")
    active.wait_for_attempt(0, 1)
    code, printed = active.launch("run")
    assert code == 0 and "started on 0 hosts, running before on 1" in printed
    assert active.attempts() == 1


def test_run_starts_only_the_hosts_that_do_not_train(active: FakeCloud) -> None:
    active.launch("run")
    active.wait_for_attempt(0, 1)
    active.set(hosts=2)
    assert "started on 1 hosts, running before on 1" in active.launch("run")[1]
    active.wait_for_attempt(1, 1)
    assert (active.attempts(0), active.attempts(1)) == (1, 1)


def test_run_needs_machines(cloud: FakeCloud) -> None:
    code, printed = cloud.launch("run")
    assert code == 2 and "`create` makes it" in printed
    cloud.set(resource="SUSPENDED")
    code, printed = cloud.launch("run")
    assert code == 2 and "SUSPENDED: `resume` makes it usable" in printed


def test_an_install_that_fails_says_what_the_host_said(active: FakeCloud) -> None:
    active.set(hosts=2)
    (active.home / "host_bin" / "git").write_text(
        "#!/bin/sh\necho permission denied by git >&2; exit 3\n"
    )
    code, printed = active.launch("run")
    assert code == 2 and "failed on a host of hyla (permission denied by git)" in printed
    assert active.attempts() == 0


def test_a_lost_connection_is_tried_again_with_growing_waits(active: FakeCloud) -> None:
    active.fault(**CONNECTION, times=3)
    assert active.launch("run")[0] == 0
    assert active.waits == list(CONNECTION_WAITS[:3]) == sorted(active.waits)
    active.wait_for_attempt(0, 1)
    assert active.attempts() == 1


def test_status_says_what_slice_and_trainer_do(active: FakeCloud) -> None:
    assert "never started" in active.launch("status")[1]
    active.plan("save 40; exit 1")
    active.launch("run", f"--workdir={active.home}/my run")
    active.wait_for_end(0)
    code, printed = active.launch("status")
    assert code == 0 and "hyla  active (ACTIVE, node READY)" in printed
    assert "exited with status 1, newest checkpoint 40" in printed
    active.set(resource="FAILED", node=None, failure="no more capacity")
    assert "lost (FAILED)\n  no more capacity" in active.launch("status")[1]


def test_logs_show_the_log_of_the_chosen_host(active: FakeCloud) -> None:
    active.set(hosts=2)
    active.plan('echo "this is $HOST"; exit 0')
    active.launch("run")
    for host in (0, 1):
        active.wait_for_end(host)
    assert "this is 0" in active.launch("logs", "--no-follow")[1]
    assert "this is 1" in active.launch("logs", "--no-follow", "--worker=1", "--lines=5")[1]


def test_stop_lets_the_trainer_save(active: FakeCloud) -> None:
    active.launch("run")
    active.wait_for_attempt(0, 1)
    assert active.launch("stop")[0] == 0
    assert "exited with status 75" in active.launch("status")[1]


def test_resume_makes_the_slice_again_and_runs_the_same_command(cloud: FakeCloud) -> None:
    cloud.plan("hang", "hang")
    cloud.launch("resume")
    cloud.wait_for_attempt(0, 1)
    first = (cloud.home / "arguments-0").read_text()
    cloud.fault("describe", set={"resource": "SUSPENDED", "node": None}, goes_on=True)
    assert cloud.launch("resume")[0] == 0
    cloud.wait_for_attempt(0, 2)
    assert (cloud.attempts(), cloud.count("resources create")) == (2, 2)
    assert (cloud.home / "arguments-0").read_text() == first


def test_resume_leaves_a_trainer_that_runs(active: FakeCloud) -> None:
    active.launch("run")
    active.wait_for_attempt(0, 1)
    assert active.launch("resume")[0] == 0
    assert active.attempts() == 1 and active.count("resources create") == 0


def test_a_slice_that_resume_made_is_not_forgotten_when_the_install_fails(cloud: FakeCloud) -> None:
    cloud.fault("git .*fetch", "fatal: no such commit\n", times=3)
    code, printed = cloud.launch("resume")
    assert code == 2 and "no such commit" in printed and "is billed" in printed


def test_the_supervisor_resumes_after_a_preemption(cloud: FakeCloud) -> None:
    cloud.set(hosts=2)
    cloud.plan("save 10; hang", "save 20; exit 0")
    preempted = {"resource": "SUSPENDED", "node": None}
    cloud.fault("resources describe", skip=4, set=preempted, goes_on=True)
    code, printed = cloud.launch("supervise")
    assert code == 0 and "hyla has finished" in printed and "is billed" in printed
    assert (cloud.attempts(0), cloud.attempts(1)) == (2, 2)
    assert (cloud.count("resources create"), cloud.count("resources delete")) == (2, 1)


@pytest.mark.parametrize("node", ["PREEMPTED", None])
def test_the_supervisor_sees_that_the_node_is_gone(cloud: FakeCloud, node: str | None) -> None:
    cloud.set(resource="ACTIVE", node=node)
    cloud.plan("exit 0")
    assert cloud.launch("supervise")[0] == 0
    assert cloud.attempts() == 1 and cloud.count("resources create") == 1


def test_a_supervisor_started_anew_goes_on(active: FakeCloud) -> None:
    active.plan("exit 0")
    active.launch("run")
    active.wait_for_end(0)
    assert active.launch("supervise")[0] == 0
    assert active.attempts() == 1


def test_the_supervisor_restarts_a_trainer_that_was_told_to_stop(active: FakeCloud) -> None:
    active.plan("exit 75", "exit 75", "exit 0")
    assert active.launch("supervise")[0] == 0
    assert active.attempts() == 3


def test_the_supervisor_restarts_all_hosts_together(active: FakeCloud) -> None:
    active.set(hosts=2)
    active.plan("[ $HOST = 0 ] || hang; exit 75", "exit 0")
    assert active.launch("supervise")[0] == 0
    active.wait_for_attempt(1, 2)


def test_a_mistake_of_the_user_ends_it_with_the_log(active: FakeCloud) -> None:
    active.plan("echo hyla-lm: Rows.train does not exist; exit 2")
    code, printed = active.launch("supervise")
    assert code == 2 and "a person must act" in printed
    assert "Rows.train does not exist" in printed and "is billed" in printed
    assert active.attempts() == 1


def test_two_failures_without_progress_end_it(active: FakeCloud) -> None:
    active.plan("exit 1", "exit 1", "exit 0")
    code, printed = active.launch("supervise")
    assert code == 2 and "a person must act" in printed
    assert active.attempts() == 2


def test_failures_with_progress_between_them_do_not(active: FakeCloud) -> None:
    active.plan("save 10; exit 1", "save 20; exit 1", "exit 0")
    assert active.launch("supervise")[0] == 0
    assert active.attempts() == 3


def test_delete_after_leaves_nothing(cloud: FakeCloud) -> None:
    cloud.plan("exit 0")
    assert cloud.launch("supervise", "--delete-after")[0] == 0
    assert is_empty(cloud)
    cloud.plan("", "echo sorry; exit 2")
    code, printed = cloud.launch("supervise", "--delete-after")
    assert code == 2 and "sorry" in printed
    assert is_empty(cloud)


def test_the_supervisor_waits_ever_longer_for_capacity_and_not_for_ever(cloud: FakeCloud) -> None:
    cloud.fault("resources create", NO_CAPACITY, times=3)
    cloud.plan("exit 0")
    assert cloud.launch("supervise")[0] == 0
    assert cloud.waits[:3] == [FIRST_WAIT_SECONDS, 2 * FIRST_WAIT_SECONDS, 4 * FIRST_WAIT_SECONDS]


def test_the_supervisor_gives_up_where_waiting_does_not_help(cloud: FakeCloud) -> None:
    cloud.fault("resources create", DENIED)
    code, printed = cloud.launch("supervise")
    assert code == 2 and "roles/tpu.admin" in printed and cloud.waits == []


def test_the_supervisor_does_not_make_again_what_someone_deleted(active: FakeCloud) -> None:
    active.fault("resources describe", skip=2, set={"resource": None, "node": None}, goes_on=True)
    code, printed = active.launch("supervise")
    assert code == 2 and "was deleted by someone else" in printed
    assert active.count("resources create") == 0


@pytest.mark.parametrize(
    ("state", "trainer", "action"),
    [
        (State.ABSENT, {}, Action.RESUME),
        (State.WAITING, {}, Action.WAIT),
        (State.LOST, {}, Action.RESUME),
        (State.ACTIVE, {}, Action.RESTART),
        (State.ACTIVE, {"state": "running"}, Action.LOOK_LATER),
        (State.ACTIVE, {"state": "exited", "code": 0}, Action.FINISH),
        (State.ACTIVE, {"state": "exited", "code": 75, "failures": 5}, Action.RESTART),
        (State.ACTIVE, {"state": "exited", "code": 2}, Action.GIVE_UP),
        (State.ACTIVE, {"state": "exited", "code": 1, "failures": 1}, Action.RESTART),
        (State.ACTIVE, {"state": "exited", "code": 137, "failures": 2}, Action.GIVE_UP),
        (State.ACTIVE, {"state": "died", "failures": 0}, Action.RESTART),
        (State.ACTIVE, {"state": "died", "failures": 1}, Action.GIVE_UP),
    ],
)
def test_decisions(state: State, trainer: dict, action: Action) -> None:
    assert decide(state, trainer) is action


def test_statuses_of_the_trainer_are_those_that_the_launcher_knows() -> None:
    known = 0, USER_MISTAKE, PREEMPTED
    assert (ending.DONE, exit_status(UserError()), ending.STOPPED) == known == (0, 2, 75)


MISTAKES = {
    "--accelerator-type=v5litepod-12": "give v5litepod-N with N one of",
    "--accelerator-type=v4-8": "is not a v5e slice",
    "--revision=main": "must be a whole commit",
    "--archive=gs://b/a.tar.gz": "--repository with --revision, or --archive",
    "--env=oops": "must be NAME=VALUE",
    "--name=Hyla": "must be at most 40 of a-z",
    "--project=": "--project is missing",
    "--workdir=": "--workdir is missing",
    "@no-such-file": "cannot be read",
}


@pytest.mark.parametrize("flag", MISTAKES)
def test_a_mistake_is_one_sentence_before_anything_is_done(cloud: FakeCloud, flag: str) -> None:
    code, printed = cloud.launch("resume", flag)
    assert code == 2 and printed.startswith("hyla-lm tpu: ") and MISTAKES[flag] in printed
    assert cloud.state["calls"] == []


def test_options_can_stand_in_a_file(cloud: FakeCloud) -> None:
    file = cloud.home / "job.args"
    file.write_text("# the job\n" + "\n".join([*PLACE, *CODE, "--spot", "--gin.A.b='c d'"]))
    more = ["--gin_file=gin/a.gin", "--workdir=w", "--dry-run"]
    assert launch.main(["resume", f"@{file}", *more]) == 0
    printed = cloud.capture.readouterr().out
    assert "--spot" in printed and "--gin.A.b=" in printed


def test_a_shell_can_run_what_a_dry_run_prints(cloud: FakeCloud) -> None:
    cloud.set(hosts=2)
    rows = """--gin.Rows.train='"gs://my-bucket/c4-512/train"'"""
    flags = [*PLACE, *CODE, "--gin_file=gin/a.gin", f"--workdir={cloud.home}/run", rows]
    launch.main(["resume", *flags, "--dry-run"])
    lines = cloud.capture.readouterr().out.splitlines()
    for line in lines:
        subprocess.run(["sh", "-c", line], capture_output=True, check="describe" not in line)
    for host in (0, 1):
        cloud.wait_for_attempt(host, 1)
    assert (cloud.home / "arguments-1").read_text().endswith(f"{rows.strip()}\n")
    assert len(cloud.state["calls"]) == len(lines)
    assert COMMIT in " ".join(lines)


@pytest.mark.parametrize(
    ("flags", "asked"),
    [
        (["--spot", "--network=vpc", "--internal-ips"], "--spot --network=vpc --internal-ips"),
        (["--best-effort"], "gcloud alpha compute tpus queued-resources create hyla"),
        (["--reserved", "--valid-for=6h"], "--reserved --valid-until-duration=6h"),
    ],
)
def test_a_slice_is_asked_for_as_the_options_say(
    cloud: FakeCloud, flags: list[str], asked: str
) -> None:
    lines = cloud.launch("create", *flags, "--dry-run")[1].splitlines()
    [create] = [line for line in lines if " create " in line]
    assert asked in create
    tunnelled = cloud.launch("logs", "--tunnel-through-iap", "--dry-run")[1]
    assert "gcloud alpha compute tpus tpu-vm ssh hyla --worker=0 --tunnel-through-iap" in tunnelled


@pytest.mark.parametrize("output", ["{half", '{"state": null}', "{banner}\n", ""])
def test_an_answer_of_a_host_that_cannot_be_read_restarts_nothing(
    active: FakeCloud, output: str
) -> None:
    active.launch("run")
    active.wait_for_attempt(0, 1)
    active.fault("worker. status", stdout=output, times=2)
    active.fault("worker. status", stdout='{"state": "exited", "code": 0}')
    assert active.launch("supervise")[0] == 0
    assert active.attempts() == 1


def test_an_interrupt_deletes_the_slice_where_that_was_asked_for(
    active: FakeCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(active, "sleep", interrupted)
    code, printed = active.launch("supervise", "--delete-after")
    assert code == 130 and is_empty(active) and "nothing is billed" in printed


def test_an_interrupted_deletion_says_what_is_billed(
    active: FakeCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(active, "sleep", interrupted)
    active.fault("resources delete", answer("busy_request"), times=9)
    code, printed = active.launch("supervise", "--delete-after")
    assert code == 130 and active.state["node"] == "READY" and "is billed" in printed
