"""Stands in for gcloud: keeps a cloud in a JSON file and runs what ssh is given, in folders.

Usage: fake_gcloud.py STATE_FILE ARGUMENT…; `faults` in the state say which calls go wrong.
"""

import json
import os
import re
import sys

GONE = "ERROR: (gcloud.compute.tpus) NOT_FOUND: Resource 'projects/p/locations/z/x' was not found\n"


class Cloud:
    def __init__(self, path: str):
        self.path, self.home = path, os.path.dirname(path)
        with open(path) as file:
            self.state = json.load(file)

    def answer(self, argv: list[str]) -> int:
        line = " ".join(argv)
        self.state["calls"].append(argv)
        self.save()
        fault = self.fault_of(line)
        if fault is not None:
            self.change(fault.get("set", {}))
            if fault.get("interrupts"):
                raise KeyboardInterrupt
            if not fault.get("goes_on"):
                sys.stdout.write(fault.get("stdout", ""))
                sys.stderr.write(fault.get("stderr", ""))
                return fault.get("code", 0)
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

    def fault_of(self, line: str) -> dict | None:
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
        hosts = [name for name in os.listdir(self.home) if name.startswith("host-")]
        for host in hosts:
            status = f"{self.home}/{host}/hyla_lm/jobs/hyla/status.json"
            if os.path.exists(status):
                with open(status) as file:
                    end_group(json.load(file).get("pid"))
            os.system(f"rm -rf '{self.home}/{host}'")

    def create(self, argv: list[str]) -> int:
        if self.state["resource"] is not None or self.state["node"] is not None:
            return self.fail("ERROR: (gcloud.compute.tpus) ALREADY_EXISTS: it already exists\n")
        self.change({"resource": "CREATING", "to_come": list(self.state["grants"])})
        return 0

    def describe_resource(self, argv: list[str]) -> int:
        if self.state["resource"] is None:
            return self.fail(GONE)
        if self.state.get("to_come"):
            self.change({"resource": self.state["to_come"].pop(0)})
            if self.state["resource"] in self.state["node_with"]:
                self.change({"node": "READY"})
        failed = {"failedData": {"error": {"message": self.state["failure"]}}}
        more = failed if self.state["resource"] == "FAILED" else {}
        print(json.dumps({"state": {"state": self.state["resource"], **more}}))
        return 0

    def describe_node(self, argv: list[str]) -> int:
        if self.state["node"] is None:
            return self.fail(GONE)
        print(json.dumps({"state": self.state["node"]}))
        return 0

    def delete_resource(self, argv: list[str]) -> int:
        if self.state["resource"] is None:
            return self.fail(GONE)
        leaves = "--force" not in argv or self.state["delete_leaves_node"]
        self.change({"resource": None} if leaves else {"resource": None, "node": None})
        return 0

    def delete_node(self, argv: list[str]) -> int:
        if self.state["node"] is None:
            return self.fail(GONE)
        self.change({"node": None})
        return 0

    def ssh(self, argv: list[str]) -> int:
        if self.state["node"] != "READY":
            return self.fail(GONE)
        options = dict(word[2:].split("=", 1) for word in argv if re.match("--[a-z-]+=", word))
        everyone = range(self.state["hosts"])
        hosts = everyone if options["worker"] == "all" else [int(options["worker"])]
        codes = [self.run_on(host, options["command"]) for host in hosts]
        return next((code for code in codes if code), 0)

    def run_on(self, host: int, script: str) -> int:
        home = f"{self.home}/host-{host}"
        os.makedirs(home, exist_ok=True)
        path = f"{self.home}/host_bin:/usr/bin:/bin"
        variables = {"HOME": home, "PATH": path, "HOST": str(host), "CLOUD": self.home}
        return self.run_in(variables, script)

    def run_in(self, variables: dict[str, str], script: str) -> int:
        return os.spawnve(os.P_WAIT, "/bin/bash", ["bash", "-c", script], variables)

    def fail(self, errors: str) -> int:
        sys.stderr.write(errors)
        return 1

    def save(self) -> None:
        with open(self.path, "w") as file:
            json.dump(self.state, file)


def end_group(pid: int | None) -> None:
    try:
        os.killpg(pid or 0, 9 if pid else 0)
    except ProcessLookupError:
        return


if __name__ == "__main__":
    sys.exit(Cloud(sys.argv[1]).answer(sys.argv[2:]))
