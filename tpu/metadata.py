"""Reads a TPU VM's metadata server: its place among the hosts, and notice of its shutdown.

Standard library only. GCE_METADATA_HOST names another server, as for Google's own clients.
"""

import os
import re
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator

SERVER = "metadata.google.internal"
PATH = "/computeMetadata/v1/instance/"
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
HEADERS = {"Metadata-Flavor": "Google"}
# What each value is while nothing is planned; the server answers at once when it changes.
QUIET = {"maintenance-event": "NONE", "preempted": "FALSE"}
ASK_SECONDS, WAIT_SECONDS, RETRY_SECONDS = 5, 60, 5.0
# The port that JAX takes on TPU hosts.
COORDINATOR_PORT = 8482


def read(key: str, **query: object) -> tuple[str, str]:
    """A value of this machine and its tag; raises OSError without a server or the value."""
    host = os.environ.get("GCE_METADATA_HOST", SERVER)
    url = f"http://{host}{PATH}{key}?{urllib.parse.urlencode(query)}"
    request = urllib.request.Request(url, headers=HEADERS)
    wait = WAIT_SECONDS if query else 0
    with OPENER.open(request, timeout=ASK_SECONDS + wait) as answer:
        return answer.read().decode().strip(), answer.headers.get("ETag", "")


def place() -> dict[str, str]:
    """JAX's variables for this host of a slice or of several; none away from a TPU VM.

    With them the trainer says how many hosts it waits for, and JAX listens on one address only.
    """
    try:
        endpoints, _ = read("attributes/worker-network-endpoints")
        number, _ = read("attributes/agent-worker-number")
        settings = dict(re.findall(r"(?m)^(\w+):\s*'(.*)'\s*$", read("attributes/tpu-env")[0]))
    except OSError:
        return {}
    # A host is written as its name or address, or as name:id:address.
    hosts = [entry.split(":")[-1] for entry in endpoints.split(",")]
    first = settings.get("MEGASCALE_COORDINATOR_ADDRESS", hosts[0]).split(":")[0]
    slices = int(settings.get("MEGASCALE_NUM_SLICES", "1"))
    index = int(settings.get("MEGASCALE_SLICE_ID", "0")) * len(hosts) + int(number)
    return {
        "JAX_COORDINATOR_ADDRESS": f"{first}:{COORDINATOR_PORT}",
        "JAX_NUM_PROCESSES": str(slices * len(hosts)),
        "JAX_PROCESS_ID": str(index),
    }


def watch(announce: Callable[[str], None]) -> None:
    """Calls `announce`, from threads, when the server announces maintenance or preemption.

    Earlier notices are ignored: a trainer started after one goes on until the machine is shut down,
    which sends SIGTERM.
    """
    for key in QUIET:
        threading.Thread(target=_watch, args=(key, announce), daemon=True).start()


def _watch(key: str, announce: Callable[[str], None]) -> None:
    before = None
    for value in _values(key):
        if before is not None and value not in (before, QUIET[key]):
            announce(f"{key} = {value}")
        before = value


def _values(key: str) -> Iterator[str]:
    """Yields the value now and after each change; ends at once without a server."""
    tag, answered = "", False
    while True:
        query = {"wait_for_change": "true", "timeout_sec": WAIT_SECONDS, "last_etag": tag}
        try:
            value, tag = read(key, **(query if answered else {}))
        except OSError as error:
            if not answered:
                print(f"no notices of {key}, for no metadata server answers ({error})", flush=True)
                return
            time.sleep(RETRY_SECONDS)
            continue
        answered = True
        yield value
