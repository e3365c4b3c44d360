"""The rules of the JobSet for GKE."""

import re
from pathlib import Path

import pytest
import yaml

JOB_SET = Path(__file__).parents[2] / "tpu" / "gke.yaml"
# What Kubernetes writes of a Job whose pod matched a rule.
JOB_FAILURES = {
    "Pod default/hyla-0 has condition DisruptionTarget matching FailJob rule at "
    "index 0": "preempted",
    "Container trainer for pod default/hyla-0 failed with exit code 75 matching FailJob rule at "
    "index 1": "preempted",
    "Container trainer for pod default/hyla-0 failed with exit code 2 matching FailJob rule at "
    "index 2": "mistake",
}


@pytest.mark.parametrize("message", JOB_FAILURES)
def test_a_preemption_uses_up_no_restart_and_a_mistake_is_final(message: str) -> None:
    spec = yaml.safe_load(JOB_SET.read_text())["spec"]
    rules = spec["failurePolicy"]["rules"]
    [rule] = [
        rule
        for rule in rules
        if any(re.search(pattern, message) for pattern in rule["onJobFailureMessagePatterns"])
    ]
    assert rule["name"] == JOB_FAILURES[message]
    actions = {"preempted": "RestartJobSetAndIgnoreMaxRestarts", "mistake": "FailJobSet"}
    assert rule["action"] == actions[rule["name"]]
    job = spec["replicatedJobs"][0]["template"]["spec"]
    by_rule = [
        found.get("onExitCodes", {}).get("values") or found["onPodConditions"][0]["type"]
        for found in job["podFailurePolicy"]["rules"]
    ]
    assert by_rule == ["DisruptionTarget", [75], [2]] and job["backoffLimit"] == 0
