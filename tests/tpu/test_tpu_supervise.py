"""The supervisor: what it makes again, what it tries again, and how it ends."""

import pytest

from hyla_lm import ending
from hyla_lm.errors import UserError
from hyla_lm.tpu.supervise import LOOK_SECONDS, USER_MISTAKE, Action, decide
from hyla_lm.tpu.worker import PREEMPTED
from tests.tpu.answers import FINAL, NO_HOST, NOT_THERE, PIP_FAILED
from tests.tpu.conftest import FakeCloud


@pytest.mark.parametrize(
    ("trainer", "action"),
    [
        ({}, Action.RESTART),
        ({"state": "running"}, Action.LOOK_LATER),
        ({"state": "exited", "code": 0}, Action.FINISH),
        ({"state": "exited", "code": 75, "failures": 5}, Action.RESTART),
        ({"state": "exited", "code": 69, "failures": 1}, Action.RESTART),
        ({"state": "exited", "code": 2}, Action.GIVE_UP),
        ({"state": "exited", "code": 137, "failures": 2}, Action.GIVE_UP),
        ({"state": "died", "failures": 0}, Action.RESTART),
        ({"state": "died", "failures": 1}, Action.GIVE_UP),
    ],
)
def test_decisions(trainer: dict, action: Action) -> None:
    assert decide(trainer) is action


def test_statuses_of_the_trainer_are_those_that_the_launcher_knows() -> None:
    known = 0, USER_MISTAKE, PREEMPTED
    assert (ending.DONE, ending.status_of(UserError()), ending.STOPPED) == known == (0, 2, 75)


@pytest.fixture
def training(active: FakeCloud) -> FakeCloud:
    """A slice whose trainer runs; it ends well when it is started again."""
    active.plan("hang", "exit 0")
    active.interrupted_sleeps = 1
    assert active.launch("supervise")[0] == 130
    active.wait_for_attempt(0, 1)
    return active


def finishes(cloud: FakeCloud, after: int) -> None:
    """The status of worker 0 is that of a trainer that has finished, from that question on."""
    finished = '{"state": "exited", "code": 0}'
    cloud.fault("worker. status", stdout=finished, skip=after)


def test_a_preempted_slice_is_made_again_and_trains_on(cloud: FakeCloud) -> None:
    cloud.set(hosts=2)
    cloud.plan("save 10; hang", "save 20; exit 0")
    preempted = {"resource": "SUSPENDED", "node": None}
    cloud.fault("resources describe", skip=4, set=preempted, goes_on=True)
    code, printed = cloud.launch("supervise")
    assert code == 0 and "hyla has finished" in printed and "is billed" in printed
    assert (cloud.attempts(0), cloud.attempts(1)) == (2, 2)
    assert (cloud.count("resources create"), cloud.count("resources delete")) == (2, 1)


def test_all_hosts_start_again_when_one_was_killed_before_they_joined(active: FakeCloud) -> None:
    active.set(hosts=3)
    active.plan("[ $HOST = 1 ] && kill -9 $$; [ $HOST = 0 ] || hang; exit 69", "exit 0")
    assert active.launch("supervise")[0] == 0
    for host in range(3):
        active.wait_for_attempt(host, 2)


def test_a_mistake_of_the_user_ends_it(active: FakeCloud) -> None:
    active.plan("echo hyla-lm: Rows.train does not exist; exit 2")
    code, printed = active.launch("supervise", "--delete-after")
    assert code == 2 and "Rows.train does not exist" in printed and "nothing is billed" in printed
    assert active.attempts() == 1 and active.is_empty


def test_a_supervisor_started_anew_goes_on(training: FakeCloud) -> None:
    finishes(training, after=0)
    assert training.launch("supervise", "--delete-after")[0] == 0
    assert training.attempts() == 1 and training.is_empty


@pytest.mark.parametrize(
    ("resource", "node"), [("SUSPENDED", None), ("ACTIVE", "PREEMPTED"), ("ACTIVE", None)]
)
def test_what_is_lost_is_made_again(cloud: FakeCloud, resource: str, node: str | None) -> None:
    cloud.set(resource=resource, node=node)
    cloud.plan("exit 0")
    assert cloud.launch("supervise")[0] == 0
    assert cloud.count("resources delete hyla --force") == cloud.count("resources create") == 1


def test_a_request_that_waits_for_days_keeps_its_place(cloud: FakeCloud) -> None:
    cloud.set(grants=["WAITING_FOR_RESOURCES"] * 100 + ["ACTIVE"])
    cloud.plan("exit 0")
    assert cloud.launch("supervise")[0] == 0
    assert sum(cloud.waits) > 99 * LOOK_SECONDS
    assert (cloud.count("resources create"), cloud.count("delete")) == (1, 0)


@pytest.mark.parametrize("had_machines", [False, True])
def test_no_quota_is_final_for_a_slice_that_never_was(cloud: FakeCloud, had_machines: bool) -> None:
    if had_machines:
        cloud.set(resource="SUSPENDED")
    cloud.fault("resources create", FINAL["no_quota"], times=5)
    cloud.plan("exit 0")
    assert cloud.launch("supervise")[0] == (0 if had_machines else 2)


def test_a_slice_that_someone_deleted_is_not_made_again(training: FakeCloud) -> None:
    gone = {"resource": None, "node": None}
    training.fault("resources describe", skip=1, set=gone, goes_on=True)
    code, printed = training.launch("supervise")
    assert code == 2 and "was deleted by someone else" in printed and "nothing is billed" in printed
    assert training.count("resources create") == 0


ODD_ANSWERS = {
    "node not found": ("tpu-vm describe", {"stderr": NOT_THERE}),
    "request lost": ("resources describe", {"stdout": '{"state": {"state": "SUSPENDED"}}'}),
    "node lost": ("tpu-vm describe", {"stdout": '{"state": "TERMINATED"}'}),
    "a list": ("resources describe", {"stdout": "[]"}),
    "denied for an hour": ("describe", {"stderr": FINAL["denied"], "times": 10}),
    "no status": ("worker. status", {"stdout": '{"state": "exited", "code": null}'}),
    "another state": ("worker. status", {"stdout": '{"state": "asleep"}'}),
    "no host": ("tpu-vm ssh", {"stderr": NO_HOST, "code": 255, "times": 3}),
}


# Those of tests/tpu/soak.py are answers too.
@pytest.mark.parametrize("name", ODD_ANSWERS)
def test_an_odd_answer_neither_ends_a_training_nor_starts_it_again(
    training: FakeCloud, name: str
) -> None:
    on, fault = ODD_ANSWERS[name]
    training.fault(on, **{"skip": 2, **fault})
    finishes(training, after=4)
    code, printed = training.launch("supervise")
    assert code == 0 and "hyla has finished" in printed
    assert training.attempts() == 1 and training.count("delete|create") == 0
    assert printed.count("Trying again") <= 1


def test_machines_that_cannot_be_made_to_train_are_not_billed_for_ever(active: FakeCloud) -> None:
    active.fault("uv pip install", PIP_FAILED, times=999)
    code, printed = active.launch("supervise", "--idle-minutes=60", "--delete-after")
    assert code == 2 and "is billed and was not seen training for 6" in printed
    assert 3600 <= sum(active.waits) < 5400 and active.is_empty


@pytest.mark.parametrize("is_seen", [False, True])
def test_a_slice_of_which_no_host_answers_is_not_made_again(
    training: FakeCloud, is_seen: bool
) -> None:
    training.fault("tpu-vm ssh", NO_HOST, code=255, skip=2 * is_seen, times=999)
    code, printed = training.launch("supervise")
    assert code == 2 and "return code [255]" in printed and "is billed" in printed
    assert training.count("delete") == 0
    assert sum(training.waits) >= (7200 if is_seen else 1200)


def test_a_node_that_does_not_get_ready_is_made_again(active: FakeCloud) -> None:
    active.set(node="REPAIRING")
    active.plan("exit 0")
    code, printed = active.launch("supervise")
    assert code == 0 and "still ACTIVE, node REPAIRING: making it again" in printed


@pytest.mark.parametrize("where", ["worker. status", "queue"])
def test_an_interrupt_prints_the_bill_and_deletes_nothing(training: FakeCloud, where: str) -> None:
    if where == "queue":
        training.set(resource="WAITING_FOR_RESOURCES", node=None)
        training.interrupted_sleeps = 1
    else:
        training.fault(where, interrupts=True)
    code, printed = training.launch("supervise")
    assert code == 130 and training.count("resources delete") == 0
    assert ("keeps its place" if where == "queue" else "is billed") in printed
    assert "hyla-lm tpu delete --name=hyla" in printed


@pytest.mark.parametrize("again", [1, 2])
def test_a_second_interrupt_ends_the_deletion_with_the_bill(
    training: FakeCloud, again: int
) -> None:
    training.fault("worker. status", interrupts=True)
    training.fault("resources delete", interrupts=True)
    training.fault("resources describe", interrupts=True, skip=1, times=again - 1)
    code, printed = training.launch("supervise", "--delete-after")
    assert code == 130 and training.state["node"] == "READY"
    assert ("is billed until" if again == 1 else "could not be seen (interrupted)") in printed
    assert printed.splitlines()[-2].endswith("--zone=us-west4-a.")
