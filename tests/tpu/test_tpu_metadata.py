"""What hosts read from the metadata server; one on loopback answers as Google's does."""

import signal
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from hyla_lm.tpu import metadata, worker

PREFIX = "/computeMetadata/v1/instance/"


class FakeServer(ThreadingHTTPServer):
    """Values by key; a change is told to those who wait for it."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.values = dict(metadata.QUIET)
        self.changed = threading.Condition()
        self.waiting: set[str] = set()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def set(self, **values: str) -> None:
        with self.changed:
            self.values |= {name.replace("_", "-"): value for name, value in values.items()}
            self.changed.notify_all()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A watcher that has ended needs no answer, and later tests read what is printed."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    def wait_for_watchers(self) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.waiting == set(metadata.QUIET), 20)


class Handler(BaseHTTPRequestHandler):
    server: FakeServer
    missing = 404

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        key = parts.path.removeprefix(PREFIX)
        if self.headers["Metadata-Flavor"] != "Google":
            return self.send_error(403)
        if key not in self.server.values:
            return self.send_error(self.missing)
        if query.get("wait_for_change") == "true":
            self._wait(key, query["last_etag"], float(query["timeout_sec"]))
        value = self.server.values[key]
        self.send_response(200)
        self.send_header("ETag", f"tag-{value}")
        self.send_header("Content-Length", str(len(value)))
        self.end_headers()
        self.wfile.write(value.encode())

    def _wait(self, key: str, seen: str, seconds: float) -> None:
        with self.server.changed:
            self.server.waiting.add(key)
            self.server.changed.notify_all()
            self.server.changed.wait_for(lambda: f"tag-{self.server.values[key]}" != seen, seconds)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    server = FakeServer()
    monkeypatch.setenv("GCE_METADATA_HOST", f"127.0.0.1:{server.server_port}")
    yield server
    server.shutdown()
    server.server_close()


def started(folder: Path) -> int:
    """The pid of a trainer that saves and ends with 75 on SIGTERM."""
    script = "trap 'exit 75' TERM; sleep 60 & wait"
    worker.start(folder, str(folder / "run"), ["sh", "-c", script])
    deadline = time.monotonic() + 20
    while "pid" not in (found := worker.status(folder)):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found["pid"]


def ended(folder: Path, seconds: float = 20) -> dict[str, object]:
    deadline = time.monotonic() + seconds
    while worker.status(folder)["state"] == "running" and time.monotonic() < deadline:
        time.sleep(0.01)
    return worker.status(folder)


@pytest.mark.parametrize(
    "notice", [{"maintenance_event": "TERMINATE_ON_HOST_MAINTENANCE"}, {"preempted": "TRUE"}]
)
def test_a_notice_stops_the_trainer_in_good_order(
    server: FakeServer, tmp_path: Path, notice: dict[str, str]
) -> None:
    started(tmp_path)
    server.wait_for_watchers()
    time.sleep(0.2)  # the shell has set its trap
    server.set(**notice)
    assert ended(tmp_path)["code"] == 75
    [value] = notice.values()
    assert f"{value}: the trainer is asked to save and end" in (tmp_path / "log").read_text()


def test_a_notice_that_stands_already_stops_nothing(server: FakeServer, tmp_path: Path) -> None:
    server.set(maintenance_event="TERMINATE_ON_HOST_MAINTENANCE")
    started(tmp_path)
    server.wait_for_watchers()
    assert ended(tmp_path, 0.5)["state"] == "running"
    server.set(maintenance_event="NONE")
    assert ended(tmp_path, 0.5)["state"] == "running"
    server.set(maintenance_event="MIGRATE_ON_HOST_MAINTENANCE")
    assert ended(tmp_path)["code"] == 75


def test_a_server_that_goes_away_and_comes_back_is_asked_again(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "RETRY_SECONDS", 0.01)
    notices: list[str] = []
    read, broken = metadata.read, threading.Event()
    broken.set()

    def unreliable(key: str, **query: object) -> tuple[str, str]:
        if query and broken.is_set():
            raise OSError("reset")
        return read(key, **query)

    monkeypatch.setattr(metadata, "read", unreliable)
    metadata.watch(notices.append)
    time.sleep(0.1)
    broken.clear()
    server.wait_for_watchers()
    server.set(preempted="TRUE")
    deadline = time.monotonic() + 20
    while not notices:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert notices == ["preempted = TRUE"]


@pytest.mark.parametrize(
    ("attributes", "place"),
    [
        (
            {
                "attributes/worker-network-endpoints": "t1v-a-w-0,t1v-a-w-1,t1v-a-w-2,t1v-a-w-3",
                "attributes/agent-worker-number": "2",
                "attributes/tpu-env": "ACCELERATOR_TYPE: 'v5litepod-16'\nWORKER_ID: '2'\n",
            },
            ("t1v-a-w-0:8482", "4", "2"),
        ),
        (
            {
                "attributes/worker-network-endpoints": "unknown:unknown:10.0.0.4,b:c:10.0.0.5",
                "attributes/agent-worker-number": "1",
                "attributes/tpu-env": "",
            },
            ("10.0.0.4:8482", "2", "1"),
        ),
        (
            {
                "attributes/worker-network-endpoints": "unknown:unknown:10.0.0.4,b:c:10.0.0.5",
                "attributes/agent-worker-number": "1",
                "attributes/tpu-env": (
                    "MEGASCALE_COORDINATOR_ADDRESS: '10.0.0.2:8080'\n"
                    "MEGASCALE_NUM_SLICES: '2'\nMEGASCALE_SLICE_ID: '1'\n"
                ),
            },
            ("10.0.0.2:8482", "4", "3"),
        ),
    ],
)
def test_a_host_learns_its_place(
    server: FakeServer, attributes: dict[str, str], place: tuple[str, str, str]
) -> None:
    server.values |= attributes
    names = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
    assert metadata.place() == dict(zip(names, place, strict=True))


def test_the_trainer_is_given_its_place(server: FakeServer, tmp_path: Path) -> None:
    server.values |= {
        "attributes/worker-network-endpoints": "host-0,host-1",
        "attributes/agent-worker-number": "1",
        "attributes/tpu-env": "",
    }
    worker.start(tmp_path, "", ["sh", "-c", "echo $JAX_PROCESS_ID of $JAX_NUM_PROCESSES"])
    assert ended(tmp_path)["code"] == 0
    assert "1 of 2\n" in (tmp_path / "log").read_text()


def test_away_from_google_there_is_no_place_and_no_notice(tmp_path: Path) -> None:
    assert metadata.place() == {}
    trainer = started(tmp_path)
    assert trainer
    assert ended(tmp_path, 0.3)["state"] == "running"
    log = (tmp_path / "log").read_text()
    assert "no notices of preempted, for no metadata server answers" in log
    assert worker.stop(tmp_path, 10)["code"] in (75, 128 + signal.SIGTERM)
