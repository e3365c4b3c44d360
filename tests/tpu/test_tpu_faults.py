"""Creating, deleting and running when the cloud fails."""

import pytest

from hyla_lm.tpu.cloud import BUSY_WAITS, CONNECTION_WAITS
from tests.tpu.conftest import FakeCloud

PREFIX = "ERROR: (gcloud.compute.tpus.queued-resources.create) "
QUOTA = (
    f"{PREFIX}RESOURCE_EXHAUSTED: Quota limit 'TPUV5sLitepodPerProjectPerZoneForTPUAPI' has been "
    "exceeded. Limit: 0 in zone us-west4-a.\n"
)
NO_CAPACITY = (
    PREFIX + '{\n  "code": 8,\n  "message": "There is no more capacity in the zone '
    '\\"us-west4-a\\"; you can try in another zone"\n}\n'
)
DENIED = f"{PREFIX}PERMISSION_DENIED: Permission 'tpu.queuedResources.create' denied on 'x'\n"
API_OFF = f"{PREFIX}PERMISSION_DENIED: Cloud TPU API has not been used in project 1 before\n"
SIGNED_OUT = (
    f"{PREFIX}You do not currently have an active account selected. Run gcloud auth login\n"
)
REFUSALS = {
    "quota": (QUOTA, "no quota", "IAM & Admin > Quotas"),
    "capacity": (NO_CAPACITY, 'no more capacity in the zone "us-west4-a"', "another --zone"),
    "permission": (DENIED, "roles/tpu.admin", "tpu.queuedResources.create"),
    "API off": (API_OFF, "gcloud services enable tpu.googleapis.com", "--project=my-project"),
    "signed out": (SIGNED_OUT, "not signed in", "gcloud auth login"),
    "anything else": (
        f"{PREFIX}INTERNAL: boom\n",
        "INTERNAL: boom",
        "queued-resources create hyla",
    ),
}
CONNECTION = {
    "on": "tpu-vm ssh",
    "code": 255,
    "stderr": "[/usr/bin/ssh] exited with return code [255].",
}


def is_empty(cloud: FakeCloud) -> bool:
    return cloud.state["resource"] is None and cloud.state["node"] is None


def test_create_waits_for_the_queue_and_for_ssh(cloud: FakeCloud) -> None:
    cloud.set(grants=["WAITING_FOR_RESOURCES", "PROVISIONING", "ACTIVE"], hosts=4)
    code, printed = cloud.launch("create")
    assert code == 0
    assert "WAITING_FOR_RESOURCES" in printed and "hyla is ready" in printed
    assert len(cloud.waits) == 2
    assert cloud.count("--worker=all .*--command=true") == 1


def test_create_again_does_nothing(cloud: FakeCloud) -> None:
    cloud.launch("create")
    code, printed = cloud.launch("create")
    assert code == 0 and "ACTIVE already" in printed
    assert cloud.count("resources create") == 1 and cloud.count("delete") == 0


@pytest.mark.parametrize("state", ["FAILED", "SUSPENDED"])
def test_create_replaces_what_is_lost(cloud: FakeCloud, state: str) -> None:
    cloud.set(resource=state)
    assert cloud.launch("create")[0] == 0
    assert cloud.count("resources delete hyla --force") == cloud.count("resources create") == 1
    assert cloud.state["resource"] == "ACTIVE"


@pytest.mark.parametrize("node", ["PREEMPTED", "TERMINATED", None])
def test_create_replaces_a_node_that_is_gone(cloud: FakeCloud, node: str | None) -> None:
    cloud.set(resource="ACTIVE", node=node)
    assert cloud.launch("create")[0] == 0
    assert cloud.state["node"] == "READY" and cloud.count("resources create") == 1


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal_is_one_sentence_that_says_what_to_do(cloud: FakeCloud, name: str) -> None:
    stderr, *expected = REFUSALS[name]
    cloud.fault("resources create", stderr)
    code, printed = cloud.launch("create")
    sentences = [line for line in printed.splitlines() if line.startswith("hyla-lm tpu: ")]
    assert code == 2 and len(sentences) == 1
    for text in expected:
        assert text in sentences[0]
    assert is_empty(cloud)


def test_a_request_that_fails_in_the_queue_says_why_and_is_deleted(cloud: FakeCloud) -> None:
    cloud.set(grants=["PROVISIONING", "FAILED"], failure="no more capacity in the zone")
    code, printed = cloud.launch("create")
    assert code == 2 and "no free v5litepod-16" in printed
    assert is_empty(cloud)


def test_a_half_created_node_is_deleted(cloud: FakeCloud) -> None:
    cloud.set(grants=["FAILED"], node_with=["FAILED"], failure="internal", delete_leaves_node=True)
    assert cloud.launch("create")[0] == 2
    assert cloud.count("tpu-vm delete hyla") == 1
    assert is_empty(cloud)


def test_machines_that_never_answer_are_deleted(cloud: FakeCloud) -> None:
    cloud.fault(**CONNECTION, times=99)
    code, printed = cloud.launch("create")
    assert code == 2 and "No SSH connection to hyla after 5 attempts" in printed
    assert "nothing is billed" in printed and is_empty(cloud)
    assert cloud.waits == list(CONNECTION_WAITS)


def test_keep_keeps_them_and_says_that_they_cost(cloud: FakeCloud) -> None:
    cloud.fault(**CONNECTION, times=99)
    code, printed = cloud.launch("create", "--keep")
    assert code == 2 and "is billed" in printed
    assert cloud.state["node"] == "READY" and cloud.count("delete") == 0


def test_a_request_that_waits_keeps_its_place_and_costs_nothing(cloud: FakeCloud) -> None:
    cloud.set(grants=["WAITING_FOR_RESOURCES"])
    code, printed = cloud.launch("create", "--wait-minutes=1")
    assert code == 2 and "still WAITING_FOR_RESOURCES after 1 minutes" in printed
    assert "keeps its place in the queue: nothing is billed until its turn" in printed
    assert sum(cloud.waits) == 60 and cloud.count("delete") == 0
    assert cloud.state["resource"] == "WAITING_FOR_RESOURCES"


def test_an_interrupt_deletes_what_was_made(
    cloud: FakeCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    cloud.set(grants=["WAITING_FOR_RESOURCES"])
    monkeypatch.setattr(cloud, "sleep", interrupted)
    assert cloud.launch("create")[0] == 130
    assert is_empty(cloud)


def test_a_request_of_someone_else_is_waited_for_and_not_deleted(cloud: FakeCloud) -> None:
    cloud.set(resource="WAITING_FOR_RESOURCES")
    assert cloud.launch("create", "--wait-minutes=0")[0] == 2
    assert cloud.state["resource"] == "WAITING_FOR_RESOURCES" and cloud.count("delete") == 0
    cloud.fault("describe", set={"resource": "ACTIVE", "node": "READY"}, goes_on=True, skip=1)
    assert cloud.launch("create")[0] == 0
    assert cloud.count("resources create") == 0


def test_a_node_without_a_request_is_left_alone(cloud: FakeCloud) -> None:
    cloud.set(node="READY")
    for command in ("create", "run", "supervise"):
        code, printed = cloud.launch(command)
        assert code == 2 and "choose another --name" in printed
    assert cloud.state["node"] == "READY" and cloud.count("delete") == 0
    assert cloud.count("resources create") == 0


def test_a_name_that_is_taken_meanwhile_is_left_alone(cloud: FakeCloud) -> None:
    cloud.fault(
        "resources create", f"{PREFIX}ALREADY_EXISTS: x already exists\n", set={"node": "READY"}
    )
    assert cloud.launch("create")[0] == 2
    assert cloud.state["node"] == "READY" and cloud.count("delete") == 0


def test_delete_deletes_both_and_is_fine_with_nothing(cloud: FakeCloud) -> None:
    cloud.launch("create")
    assert cloud.launch("delete")[0] == 0
    assert is_empty(cloud)
    assert cloud.launch("delete")[0] == 0


def test_delete_waits_for_what_cannot_be_deleted_yet(cloud: FakeCloud) -> None:
    cloud.set(resource="PROVISIONING")
    busy = "ERROR: (gcloud.compute.tpus) FAILED_PRECONDITION: not while in state PROVISIONING\n"
    cloud.fault("resources delete", busy, times=2)
    assert cloud.launch("delete")[0] == 0
    assert cloud.waits == list(BUSY_WAITS[:2]) and is_empty(cloud)


def test_delete_in_a_wrong_zone_does_not_say_that_all_is_gone(cloud: FakeCloud) -> None:
    wrong = "ERROR: (gcloud.compute.tpus) NOT_FOUND: Location us-wset4-a is not found\n"
    cloud.fault("resources delete", wrong)
    code, printed = cloud.launch("delete")
    assert code == 2 and "change --zone" in printed


def test_delete_that_is_not_allowed_says_so(cloud: FakeCloud) -> None:
    cloud.set(resource="ACTIVE", node="READY")
    cloud.fault("resources delete", DENIED)
    code, printed = cloud.launch("delete")
    assert code == 2 and "roles/tpu.admin" in printed


def test_gcloud_that_is_not_there(cloud: FakeCloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(cloud.home / "nothing"))
    code, printed = cloud.launch("status")
    assert code == 2 and "gcloud is not on PATH" in printed
    monkeypatch.setenv("PATH", f"{cloud.home / 'bin'}:/usr/bin:/bin")
