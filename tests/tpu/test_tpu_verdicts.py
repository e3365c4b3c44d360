"""What gcloud answers, what the launcher makes of it, and what that costs."""

import time
from collections.abc import Sequence

import pytest

from hyla_lm.tpu import launch
from hyla_lm.tpu.answers import Kind, answer_of, silent_hosts
from hyla_lm.tpu.cloud import Cloud
from hyla_lm.tpu.launch import read_job
from hyla_lm.tpu.programs import TIMED_OUT, Done, run_for_real
from hyla_lm.tpu.supervise import LOOK_SECONDS, supervise
from tests.tpu.answers import answer, description, kind_names
from tests.tpu.conftest import CODE, PLACE, FakeCloud, runs_gcloud_here
from tests.tpu.test_tpu_faults import is_empty

KINDS = kind_names()
NO_RUN_MENDS = {
    **{"no_quota": "IAM & Admin > Quotas", "wrong_zone": "change --zone"},
    **{"missing_location": "change --zone", "missing_project": "change --project"},
    **{"foreign_project": "change --project", "billing_off": "gcloud billing projects link"},
    **{"api_off": "gcloud services enable tpu", "signed_out": "run gcloud auth login"},
    **{"no_such_type": "does not offer v5litepod-16", "missing_network": "change --network"},
    "invalid": "change that option",
}
WAITING_MENDS = (
    *("read_rate", "write_rate", "no_capacity", "retriable_invalid", "unavailable", "no_network"),
)


@pytest.fixture(autouse=True)
def without_processes(cloud: FakeCloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "run_for_real", runs_gcloud_here(cloud.file))


@pytest.fixture
def active(cloud: FakeCloud) -> FakeCloud:
    cloud.set(resource="ACTIVE", node="READY")
    return cloud


def of(name: str) -> Kind:
    """The kind of an answer, from a command of the sort that gave it."""
    text = answer(name)
    verb = next((verb for verb in ("create", "ssh") if f".{verb})" in text), "describe")
    ssh = name in ("pip_failed", "step_timeout") or verb == "ssh"
    code = 255 if name == "host_away" else 1
    return answer_of(["gcloud", "ssh" if ssh else verb], code, text).kind


@pytest.mark.parametrize("name", KINDS)
def test_every_answer_has_its_verdict(name: str) -> None:
    assert of(name).name == KINDS[name]


@pytest.mark.parametrize("name", NO_RUN_MENDS)
def test_what_waiting_does_not_mend_ends_it_and_nothing_is_billed(
    cloud: FakeCloud, name: str
) -> None:
    cloud.fault("resources create", answer(name))
    code, printed = cloud.launch("supervise")
    assert code == 2 and NO_RUN_MENDS[name] in printed.splitlines()[-1]
    assert "so nothing is billed" in printed and "is billed while" not in printed
    assert cloud.waits == [] and len(printed.splitlines()) <= 10


@pytest.mark.parametrize("name", WAITING_MENDS)
def test_what_waiting_mends_is_tried_until_it_goes(cloud: FakeCloud, name: str) -> None:
    cloud.plan("exit 0")
    cloud.fault("resources create", answer(name), times=30)
    assert cloud.launch("supervise")[0] == 0
    assert cloud.waits[:2] == sorted(cloud.waits[:2]) and sum(cloud.waits) > 1800


@pytest.mark.parametrize("name", ["read_rate", "unavailable", "no_network"])
def test_one_bad_look_does_not_end_a_training(active: FakeCloud, name: str) -> None:
    active.fault("describe", answer(name), skip=4, times=9)
    active.plan("save 10; sleep 1; exit 0")
    code, printed = active.launch("supervise")
    assert code == 0 and "no quota" not in printed and active.attempts() == 1


def test_an_answer_that_is_no_json_is_asked_for_again(active: FakeCloud) -> None:
    active.fault("resources describe", code=0)
    active.plan("exit 0")
    assert active.launch("supervise")[0] == 0


@pytest.mark.parametrize("command", ["create", "supervise"])
def test_a_refusal_says_truly_what_is_billed(cloud: FakeCloud, command: str) -> None:
    cloud.fault("resources create", answer("no_quota"))
    code, printed = cloud.launch(command)
    assert code == 2 and is_empty(cloud)
    assert printed.count("billed") == 1 and "nothing is billed" in printed


def test_what_was_made_in_spite_of_an_error_is_said_to_cost(cloud: FakeCloud) -> None:
    made = {"resource": "ACTIVE", "node": "READY"}
    cloud.fault("resources create", answer("invalid"), set=made)
    code, printed = cloud.launch("supervise")
    assert code == 2 and "still exists, and is billed" in printed and "nothing" not in printed


def test_a_bill_that_cannot_be_seen_is_not_guessed(cloud: FakeCloud) -> None:
    cloud.fault("resources create", answer("no_quota"))
    cloud.fault("describe", answer("api_off"), skip=2, times=99)
    code, printed = cloud.launch("create", "--keep")
    assert code == 2 and "could not be seen" in printed and "so nothing is billed" not in printed


def test_a_request_that_waits_for_days_keeps_its_place(cloud: FakeCloud) -> None:
    waiting = {"stdout": description("waiting_request"), "skip": 1, "times": 100}
    cloud.fault("resources describe", **waiting)
    cloud.plan("exit 0")
    assert cloud.launch("supervise")[0] == 0
    assert sum(cloud.waits) > 99 * LOOK_SECONDS
    assert (cloud.count("resources create"), cloud.count("delete")) == (1, 0)


def test_an_interrupt_leaves_the_place_in_the_queue(
    cloud: FakeCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    cloud.set(grants=["WAITING_FOR_RESOURCES"])
    monkeypatch.setattr(cloud, "sleep", interrupted)
    code, printed = cloud.launch("supervise")
    assert code == 130 and "keeps its place" in printed and cloud.count("delete") == 0


def test_a_request_that_fails_is_made_again_after_a_wait(cloud: FakeCloud) -> None:
    cloud.set(grants=["FAILED"], failure="There is no more capacity in the zone")
    cloud.fault("resources create", skip=3, set={"grants": ["ACTIVE"]}, goes_on=True)
    cloud.plan("exit 0")
    assert cloud.launch("supervise")[0] == 0
    assert cloud.count("resources create") == 4


def test_a_request_that_was_not_served_in_its_time_ends_it(cloud: FakeCloud) -> None:
    cloud.set(grants=["WAITING_FOR_RESOURCES", "FAILED"])
    code, printed = cloud.launch("supervise", "--valid-for=6h")
    assert code == 2 and "was not served in 6h" in printed and "nothing is billed" in printed
    assert cloud.count("--valid-until-duration=6h") == 1


def test_pip_that_fails_once_on_one_worker_is_run_again(active: FakeCloud) -> None:
    active.fault("uv pip install", answer("pip_failed"))
    active.plan("exit 0")
    code, printed = active.launch("supervise")
    assert code == 0 and "No matching distribution found for uv" in printed


def test_a_step_of_the_install_that_hangs_is_run_again(active: FakeCloud) -> None:
    active.fault("uv pip install", answer("step_timeout"), code=124)
    active.plan("exit 0")
    code, printed = active.launch("supervise")
    assert code == 0 and "Command execution on worker 2 failed with exit status 124" in printed
    assert active.count("delete") == 0 and "gave no answer" not in printed


@pytest.mark.parametrize("verb", ["resources describe", "resources create", "ssh"])
def test_a_gcloud_that_hangs_is_ended_and_run_again(cloud: FakeCloud, verb: str) -> None:
    hung: list[str] = []

    def run(
        argv: Sequence[str], *, stream: bool = False, stdin: str = "", limit: float | None = None
    ) -> Done:
        if verb in " ".join(argv) and not hung:
            hung.append(verb)
            return run_for_real(["sleep", "60"], limit=0.1)
        return run_for_real(argv, stream=stream, stdin=stdin, limit=limit)

    cloud.plan("exit 0")
    training = ["--gin_file=gin/a.gin", f"--workdir={cloud.home}/run"]
    job = read_job(["supervise", *PLACE, *CODE, *training])
    supervise(Cloud(job, run, cloud.sleep, clock=cloud.clock), 20, 120)
    assert hung == [verb] and cloud.attempts() == 1
    assert cloud.count("resources create") == 1 and cloud.count("delete") == 0


def test_machines_that_cannot_be_made_to_train_are_not_billed_for_ever(active: FakeCloud) -> None:
    active.fault("uv pip install", answer("pip_failed"), times=999)
    code, printed = active.launch("supervise", "--idle-minutes=60")
    assert code == 2 and "is billed and has not trained for 6" in printed
    assert 3600 <= sum(active.waits) < 5400
    assert active.launch("supervise", "--idle-minutes=60", "--delete-after")[0] == 2
    assert is_empty(active)


def away(cloud: FakeCloud, times: int = 999) -> None:
    cloud.fault("ssh .*--worker=all", answer("host_away"), code=255, times=times)


def test_one_host_that_stays_away_has_the_slice_made_again(active: FakeCloud) -> None:
    active.set(hosts=2)
    away(active)
    active.fault("resources delete", set={"faults": []}, goes_on=True)
    active.plan("exit 0", "exit 0")
    code, printed = active.launch("supervise", "--away-minutes=20")
    assert code == 0 and "hosts that do not answer (1) for 2" in printed
    assert (active.count("resources delete"), active.count("resources create")) == (1, 1)
    assert 1200 <= sum(active.waits) < 2400


def test_a_deletion_that_fails_is_tried_again(active: FakeCloud) -> None:
    active.set(hosts=2)
    away(active)
    active.fault("resources delete", answer("busy_request"), times=7)
    active.fault("resources delete", set={"faults": []}, goes_on=True)
    active.plan("exit 0", "exit 0")
    assert active.launch("supervise")[0] == 0
    assert (active.count("resources delete"), active.count("resources create")) == (8, 1)


def test_the_last_deletion_is_tried_until_it_goes(active: FakeCloud) -> None:
    active.plan("exit 0")
    active.fault("resources delete", answer("busy_request"), times=12)
    code, printed = active.launch("supervise", "--delete-after")
    assert code == 0 and is_empty(active) and "nothing is billed" in printed


def test_a_host_that_comes_back_does_not(active: FakeCloud) -> None:
    away(active, times=7)
    active.plan("exit 0")
    assert active.launch("supervise")[0] == 0
    assert active.count("resources delete") == 0


def test_a_slice_that_never_answered_here_is_not_made_again(active: FakeCloud) -> None:
    refused = answer("host_away").replace("worker 0...", "worker 2...")
    active.fault("tpu-vm ssh", refused.replace("SSH: ", ""), code=255, times=999)
    code, printed = active.launch("supervise")
    assert code == 2 and "ssh-add" in printed and "is billed" in printed
    assert active.count("resources delete") == 0


def test_a_network_that_is_away_for_hours_ends_no_training(active: FakeCloud) -> None:
    active.plan("save 10; sleep 1; exit 0")
    active.fault("describe", answer("no_network"), skip=4, times=60)
    code, printed = active.launch("supervise")
    assert code == 0 and sum(active.waits) > 3 * 3600 and active.attempts() == 1
    assert active.count("delete") == 0 and "is billed and has not" not in printed


def test_a_training_that_no_host_shows_is_not_deleted(active: FakeCloud) -> None:
    active.launch("run")
    active.wait_for_attempt(0, 1)
    silent = answer("host_away").replace("SSH: ", "")
    active.fault("tpu-vm ssh", silent, code=255, skip=2, times=999)
    code, printed = active.launch("supervise")
    assert code == 2 and "Its trainer may be running" in printed and "is billed" in printed
    assert active.count("delete") == 0 and sum(active.waits) >= 7200


def test_one_host_that_is_the_slice_is_made_again(active: FakeCloud) -> None:
    one = "--accelerator-type=v5litepod-8"
    active.plan("hang", "exit 0")
    active.launch("run", one)
    active.wait_for_attempt(0, 1)
    active.fault("tpu-vm ssh", answer("host_away"), code=255, skip=1, times=999)
    active.fault("resources delete", set={"faults": []}, goes_on=True)
    assert active.launch("supervise", one)[0] == 0
    assert active.count("resources delete") == 1


def test_a_node_that_does_not_get_ready_is_made_again(active: FakeCloud) -> None:
    active.set(node="REPAIRING")
    active.plan("exit 0")
    code, printed = active.launch("supervise")
    assert code == 0 and "REPAIRING for 20 minutes: making it again" in printed


def test_the_hosts_that_gcloud_tried_again_are_away() -> None:
    assert silent_hosts(answer("host_away")) == {1}


def test_status_names_the_host_that_is_away(active: FakeCloud) -> None:
    away(active)
    code, printed = active.launch("status")
    assert code == 0 and "host 1  does not answer" in printed and "host 0" not in printed


@pytest.mark.parametrize("worker", ["9", "-1", "all", "0;x"])
def test_logs_of_a_host_that_is_not_there(active: FakeCloud, worker: str) -> None:
    code, printed = active.launch("logs", f"--worker={worker}")
    assert code == 2 and f"--worker={worker} is no host of hyla: give 0 to 3" in printed
    assert active.state["calls"] == []


def test_a_command_that_hangs_is_ended_with_all_that_it_started() -> None:
    started = time.monotonic()
    done = run_for_real(["sh", "-c", "sleep 31.4159 & sleep 60"], limit=0.2)
    assert done.code == TIMED_OUT and "no answer in 0 s" in done.errors
    assert time.monotonic() - started < 5


def test_every_command_has_a_limit_and_every_connection_a_keep_alive(cloud: FakeCloud) -> None:
    limits: list[tuple[str, float | None]] = []

    def run(argv, *, stream=False, stdin="", limit=None):
        limits.append((" ".join(argv), limit))
        return run_for_real(argv, stream=stream, stdin=stdin, limit=limit)

    cloud.set(resource="SUSPENDED")
    cloud.plan("exit 0")
    training = ["--gin_file=gin/a.gin", f"--workdir={cloud.home}/run"]
    job = read_job(["supervise", *PLACE, *CODE, *training])
    supervise(Cloud(job, run, cloud.sleep, clock=cloud.clock), 20, 120)
    assert len(limits) > 8 and all(limit and limit <= 3600 for _, limit in limits)
    ssh = [line for line, _ in limits if " ssh " in line]
    assert ssh and all("--ssh-flag=-oServerAliveInterval=15" in line for line in ssh)


@pytest.mark.parametrize(
    "flag",
    [
        *("--repository=--upload-pack=touch x", "--python=-x", "--project=-p", "--zone=-z"),
        *("--network=-n", "--service-account=-s", "--workdir=-w", "--gin_file=-g"),
        *("--runtime-version=-r", "--subnetwork=a\nb"),
    ],
)
def test_a_value_that_would_become_an_option_is_refused(cloud: FakeCloud, flag: str) -> None:
    code, printed = cloud.launch("resume", flag)
    assert code == 2 and printed.startswith(f"hyla-lm tpu: {flag.partition('=')[0]}=")
    assert cloud.state["calls"] == []


def test_two_slices_are_asked_for_and_trained_on_together(cloud: FakeCloud) -> None:
    lines = cloud.launch("resume", "--slices=2", "--dry-run")[1].splitlines()
    [create] = [line for line in lines if " create " in line]
    assert "--node-count=2 --node-prefix=hyla" in create and "--node-id" not in create
    starts = [line for line in lines if "worker start" in line]
    assert [("ssh hyla-0" in line, "ssh hyla-1" in line) for line in starts] == [
        (True, False),
        (False, True),
    ]
    logs = cloud.launch("logs", "--slices=2", "--worker=5", "--dry-run")[1]
    assert "ssh hyla-1 --worker=1" in logs
