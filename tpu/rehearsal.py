"""What a dry run does in the place of gcloud."""

import json
import shlex
from collections.abc import Sequence

from hyla_lm.tpu.commands import SECRET_BYTES
from hyla_lm.tpu.programs import Done

MAKE_SECRET = f"python3 -c 'import secrets; print(secrets.token_hex({SECRET_BYTES}))'"


class Rehearsal:
    """Prints each command and answers like a cloud without errors.

    A secret on standard input is not printed, but a command that makes another.
    """

    def __init__(self, exists: bool):
        self.exists, self.trained = exists, False

    def __call__(
        self,
        argv: Sequence[str],
        *,
        stream: bool = False,
        stdin: str = "",
        limit: float | None = None,
    ) -> Done:
        print(f"{MAKE_SECRET} | {shlex.join(argv)}" if stdin else shlex.join(argv))
        words = argv[argv.index("tpus") + 1 :]
        if words[:2] == ["queued-resources", "create"] or words[1] == "delete":
            self.exists = words[1] == "create"
        if words[1] == "ssh":
            before, self.trained = self.trained, self.trained or "worker start" in argv[-1]
            answer = {"state": "exited", "code": 0} if before else {}
            return Done(0, f"{json.dumps(answer)}\n")
        if words[1] != "describe":
            return Done(0)
        if not self.exists:
            return Done(1, errors="NOT_FOUND")
        is_node = words[0] == "tpu-vm"
        return Done(0, json.dumps({"state": "READY" if is_node else {"state": "ACTIVE"}}))
