"""The JobSet on GKE."""

import re
from pathlib import Path

import pytest
import yaml

from hyla_lm.tpu import cli
from tests.tpu.conftest import write_program

FLAGS = ["gke", "--name=hyla", "--image=i", "--gin_file=gin/a.gin", "--workdir=/mnt/r"]


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder where a stand-in keeps what it was given; `refusal` there makes it fail."""
    text = f'cd {tmp_path}; echo "$@" >> arguments; cat > "$1"'
    fail = 'if [ -e refusal ]; then cat refusal >&2; exit 1; fi; echo jobset/hyla: "$1"'
    write_program(tmp_path / "bin" / "kubectl", f"{text}; {fail}")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    return tmp_path


def test_the_manifest_is_applied(kubectl: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*FLAGS, '--gin.A.b="$c: #d"']) == 0
    assert (kubectl / "arguments").read_text() == "apply -f -\n"
    assert capsys.readouterr().out == "jobset/hyla: apply\n"
    cli.main([*FLAGS, '--gin.A.b="$c: #d"', "--dry-run"])
    manifest = capsys.readouterr().out
    assert (kubectl / "apply").read_text() == manifest
    assert r'"--gin.A.b=\"$c: #d\""' in manifest


def test_what_kubectl_says_is_passed_on(kubectl: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (kubectl / "refusal").write_text('error: no matches for kind "JobSet" in version "v1"\n')
    assert cli.main(FLAGS) == 2
    assert 'kubectl: error: no matches for kind "JobSet"' in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--name=A", "--accelerator-type=v5litepod-3", "--workdir="])
def test_a_mistake_reaches_no_cluster(
    kubectl: Path, capsys: pytest.CaptureFixture[str], flag: str
) -> None:
    assert cli.main([*FLAGS, flag]) == 2
    assert capsys.readouterr().err.startswith(f"hyla-lm tpu: {flag.partition('=')[0]}")
    assert not (kubectl / "arguments").exists()


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
def test_a_preemption_uses_up_no_restart_and_a_mistake_is_final(
    capsys: pytest.CaptureFixture[str], message: str
) -> None:
    assert cli.main([*FLAGS, "--dry-run"]) == 0
    spec = yaml.safe_load(capsys.readouterr().out)["spec"]
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
