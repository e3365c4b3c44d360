"""Stands in for gcloud: keeps a cloud in a JSON file and runs what ssh is given, in folders.

`faults` in the state say which calls go wrong.
"""

import json
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hyla_lm.tpu.gcloud import Done, run_for_real

GONE = Done(1, errors="ERROR: (gcloud.compute.tpus) NOT_FOUND: Resource 'x' was not found\n")


class Cloud:
    """The cloud in a file, for one call of gcloud."""

    def __init__(self, path: Path, limit: float | None = None):
        self.path, self.home, self.limit = path, path.parent, limit
        self.state = json.loads(path.read_text())

    def answer(self, argv: Sequence[str]) -> Done:
        """What gcloud prints when it is called, and its status."""
        line = " ".join(argv)
        self.state["calls"].append(argv)
        self.save()
        fault = self.fault_of(line)
        if fault is not None:
            self.change(fault.get("set", {}))
            if fault.get("interrupts"):
                raise KeyboardInterrupt
            if not fault.get("goes_on"):
                texts = fault.get("stdout", ""), fault.get("stderr", "")
                return Done(fault.get("code", 0), *texts)
        words = [word for word in argv if not word.startswith("-")]
        words = words[words.index("tpus") + 1 :]
        return {
            ("queued-resources", "create"): self.create,
            ("queued-resources", "describe"): self.describe_resource,
            ("queued-resources", "delete"): self.delete_resource,
            ("tpu-vm", "describe"): self.describe_node,
            ("tpu-vm", "delete"): self.delete_node,
            ("tpu-vm", "ssh"): self.ssh,
        }[(words[0], words[1])](argv)

    def fault_of(self, line: str) -> dict[str, Any] | None:
        """The first fault that fits and is due: after `skip` calls, for `times` calls."""
        for fault in self.state["faults"]:
            if not re.search(fault["on"], line) or fault.get("times", 1) == 0:
                continue
            if fault.get("skip", 0) > 0:
                fault["skip"] -= 1
                self.save()
                continue
            fault["times"] = fault.get("times", 1) - 1
            self.save()
            return fault
        return None

    def change(self, new: dict) -> None:
        if "node" in new and new["node"] != "READY":
            self.lose_hosts()
        self.state.update(new)
        self.save()

    def lose_hosts(self) -> None:
        """Ends every process of the hosts and clears their disks."""
        for host in self.home.glob("host-*"):
            status = host / "hyla_lm/jobs/hyla/status.json"
            pid = json.loads(status.read_text()).get("pid") if status.exists() else None
            if pid:
                with suppress(ProcessLookupError):
                    os.killpg(pid, 9)
            os.system(f"rm -rf '{host}'")

    def create(self, argv: Sequence[str]) -> Done:
        if self.state["resource"] is not None or self.state["node"] is not None:
            return Done(1, errors="ERROR: (gcloud.compute.tpus) ALREADY_EXISTS: it is there\n")
        self.change({"resource": "CREATING", "to_come": list(self.state["grants"])})
        return Done(0)

    def describe_resource(self, argv: Sequence[str]) -> Done:
        if self.state["resource"] is None:
            return GONE
        if self.state.get("to_come"):
            self.change({"resource": self.state["to_come"].pop(0)})
            if self.state["resource"] == "ACTIVE":
                self.change({"node": "READY"})
        failed = {"failedData": {"error": {"message": self.state["failure"]}}}
        more = failed if self.state["resource"] == "FAILED" else {}
        return Done(0, json.dumps({"state": {"state": self.state["resource"], **more}}))

    def describe_node(self, argv: Sequence[str]) -> Done:
        if self.state["node"] is None:
            return GONE
        return Done(0, json.dumps({"state": self.state["node"]}))

    def delete_resource(self, argv: Sequence[str]) -> Done:
        if self.state["resource"] is None:
            return GONE
        leaves = "--force" not in argv or self.state["delete_leaves_node"]
        self.change({"resource": None} if leaves else {"resource": None, "node": None})
        return Done(0)

    def delete_node(self, argv: Sequence[str]) -> Done:
        if self.state["node"] is None:
            return GONE
        self.change({"node": None})
        return Done(0)

    def ssh(self, argv: Sequence[str]) -> Done:
        if self.state["node"] != "READY":
            return GONE
        options = dict(word[2:].split("=", 1) for word in argv if re.match("--[a-z-]+=", word))
        everyone = range(self.state["hosts"])
        hosts = everyone if options["worker"] == "all" else [int(options["worker"])]
        ended = [self.run_on(host, options["command"]) for host in hosts]
        code = next((done.code for done in ended if done.code), 0)
        outputs, errors = [done.output for done in ended], [done.errors for done in ended]
        return Done(code, "".join(outputs), "".join(errors))

    def run_on(self, host: int, script: str) -> Done:
        """Runs a script where the folder of a host is its home."""
        home = self.home / f"host-{host}"
        home.mkdir(exist_ok=True)
        path = f"{self.home}/host_bin:/usr/bin:/bin"
        variables = [f"HOME={home}", f"PATH={path}", f"HOST={host}", f"CLOUD={self.home}"]
        return run_for_real(["env", "-i", *variables, "bash", "-c", script], limit=self.limit)

    def save(self) -> None:
        self.path.write_text(json.dumps(self.state))
