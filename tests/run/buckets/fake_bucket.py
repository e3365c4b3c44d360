"""Google Cloud Storage on loopback: as much of its API as gcsfs, array_record and Orbax use."""

import asyncio
import json
import re
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

PATH = re.compile(r"(/download|/upload)?/storage/v1/b/(?P<bucket>[^/]+)/o(/(?P<name>.+))?")
MOVE = re.compile(r"(?P<source>.+)/(?P<verb>rewriteTo/b/[^/]+|moveTo)/o/(?P<target>.+)")
RANGE = re.compile(r"bytes=(?P<first>\d*)-(?P<last>\d*)")
DROPPED = 0
LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Fault:
    """The next `count` requests that contain `where` get this status, or are DROPPED midway."""

    status: int
    count: int
    where: str = ""


@dataclass(frozen=True)
class Answer:
    """A response; its body is JSON unless it is bytes."""

    status: int
    content: Any = b""
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def body(self) -> bytes:
        as_is = isinstance(self.content, bytes)
        return self.content if as_is else json.dumps(self.content).encode()


def failure(status: int, message: str) -> Answer:
    return Answer(status, {"error": {"code": status, "message": message}})


class FakeBucket:
    """A store of all buckets: "bucket/name" to bytes. It serves while its context is open.

    `requests` are those served so far, `watcher` is told of each before it is answered. The account
    may use objects and list them; whether it may look at buckets says `buckets_can_be_seen`.
    Generations count writes. `ahead` is by how much its clock is ahead of this machine's.
    """

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.buckets_can_be_seen = False
        self.faults: list[Fault] = []
        self.watcher: Callable[[str], None] = lambda _: None
        self.ahead = timedelta()
        self._generations: dict[str, int] = {}
        self._updated: dict[str, datetime] = {}
        self._uploads: dict[str, tuple[str, bytes]] = {}
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), type("Bound", (_Handler,), {"store": self}))
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> "FakeBucket":
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def environment(self) -> dict[str, str]:
        """What leads the clients here, without credentials or a look for them.

        That are gcsfs, array_record and TensorStore, which Orbax writes arrays with.
        """
        return {
            "STORAGE_EMULATOR_HOST": self.url,
            "TENSORSTORE_GCS_HTTP_URL": self.url,
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": "none",
            "CLOUD_STORAGE_EMULATOR_ENDPOINT": self.url,
            "FSSPEC_GCS_TOKEN": "anon",
            "NO_GCE_CHECK": "true",
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",  # it asks by gRPC, which is not served
        }

    def put(self, folder: Path, prefix: str) -> None:
        """Uploads the files of a local folder as objects "prefix/name"."""
        self.objects |= {f"{prefix}/{path.name}": path.read_bytes() for path in folder.iterdir()}

    def fail(self, status: int, count: int, where: str = "") -> None:
        self.faults.append(Fault(status, count, where))

    def fault_of(self, request: str) -> int | None:
        """Counts a request; the status it fails with, if it does."""
        with self._lock:
            self.requests.append(request)
            for fault in self.faults:
                if fault.count and fault.where in request:
                    fault.count -= 1
                    return fault.status
        return None

    def answer(self, method: str, target: str, headers: Any, body: bytes) -> Answer:
        url = urlsplit(target)
        query = {name: values[-1] for name, values in parse_qs(url.query).items()}
        match = PATH.fullmatch(url.path)
        if match is None:
            return self._bucket(url.path)
        bucket, key = match["bucket"], f"{match['bucket']}/{unquote(match['name'] or '')}"
        if move := MOVE.fullmatch(match["name"] or ""):
            return self._copy(bucket, move)
        with self._lock:
            if url.path.startswith("/upload/"):
                return self._upload(bucket, query, headers, body)
            if match["name"] is None:
                return Answer(200, self._listing(bucket, query))
            return self._object(method, key, query, headers)

    def _bucket(self, path: str) -> Answer:
        name = path.rpartition("/")[2]
        if self.buckets_can_be_seen:
            return Answer(200, {"kind": "storage#bucket", "id": name, "name": name})
        return failure(403, "this account may use objects only")

    def _object(self, method: str, key: str, query: dict[str, str], headers: Any) -> Answer:
        if key not in self.objects:
            return failure(404, f"No such object: {key}")
        if query.get("ifGenerationNotMatch") == str(self._generation(key)):
            return Answer(304)
        if not self._is_expected(key, query):
            return failure(412, "the object has another generation")
        if method == "DELETE":
            del self.objects[key]
            return Answer(204)
        if query.get("alt") == "media":
            generation = {"x-goog-generation": str(self._generation(key))}
            return self._media(self.objects[key], headers.get("Range", ""), generation)
        return Answer(200, self._metadata(key))

    def _generation(self, key: str) -> int:
        """0 where there is no object, as in the API."""
        return self._generations.setdefault(key, 1) if key in self.objects else 0

    def _is_expected(self, key: str, query: dict[str, str]) -> bool:
        expected = query.get("ifGenerationMatch")
        return expected is None or int(expected) == self._generation(key)

    def _write(self, key: str, content: bytes) -> Answer:
        self.objects[key] = content
        self._generations[key] = 1 + max(self._generations.values(), default=1)
        self._updated[key] = datetime.now(UTC) + self.ahead
        return Answer(200, self._metadata(key))

    def _metadata(self, key: str) -> dict[str, Any]:
        bucket, _, name = key.partition("/")
        facts = {"kind": "storage#object", "bucket": bucket, "name": name}
        facts["generation"] = str(self._generation(key))
        time = f"{self._updated.get(key, LONG_AGO):%Y-%m-%dT%H:%M:%S.%fZ}"
        return facts | {"size": str(len(self.objects[key])), "timeCreated": time, "updated": time}

    def _listing(self, bucket: str, query: dict[str, str]) -> dict[str, Any]:
        """A page of objects and of folders, whose names end with the delimiter."""
        prefix = f"{bucket}/{query.get('prefix', '')}"
        found: dict[str, bool] = {}
        for key in sorted(key for key in list(self.objects) if key.startswith(prefix)):
            head, separator, _ = key[len(prefix) :].partition(query.get("delimiter", "\0"))
            found[prefix + head + separator] = bool(separator)
        after, first = query.get("pageToken", ""), f"{bucket}/{query.get('startOffset', '')}"
        end = f"{bucket}/{query['endOffset']}" if "endOffset" in query else "\U0010ffff"
        names = [name for name in found if after < name and first <= name < end]
        page = names[: int(query.get("maxResults", 1000))]
        return {
            "kind": "storage#objects",
            "items": [self._metadata(name) for name in page if not found[name]],
            "prefixes": [name.partition("/")[2] for name in page if found[name]],
            **({"nextPageToken": page[-1]} if len(page) < len(names) else {}),
        }

    def _media(self, content: bytes, span: str, headers: dict[str, str]) -> Answer:
        asked, size = RANGE.fullmatch(span), len(content)
        if asked is None:
            return Answer(200, content, headers)
        if asked["first"]:
            first, end = int(asked["first"]), min(size, int(asked["last"] or size) + 1)
        else:  # the last bytes, however many there are
            first, end = max(0, size - int(asked["last"])), size
        if first >= size:
            return failure(416, "The requested range is not satisfiable")
        place = {"Content-Range": f"bytes {first}-{end - 1}/{size}"}
        return Answer(206, content[first:end], headers | place)

    def _copy(self, bucket: str, move: re.Match[str]) -> Answer:
        source = f"{bucket}/{unquote(move['source'])}"
        target = f"{bucket}/{unquote(move['target'])}"
        if source not in self.objects:
            return failure(404, f"No such object: {source}")
        self._write(target, self.objects[source])
        if move["verb"] == "moveTo":
            del self.objects[source]
            return Answer(200, self._metadata(target))
        return Answer(200, {"done": True, "resource": self._metadata(target)})

    def _upload(self, bucket: str, query: dict[str, str], headers: Any, body: bytes) -> Answer:
        """An object at once (media, multipart), or the start or a chunk of a resumable upload."""
        if "upload_id" in query:
            return self._upload_chunk(query["upload_id"], headers["Content-Range"], body)
        if query["uploadType"] == "resumable":
            session = str(len(self._uploads))
            self._uploads[session] = (f"{bucket}/{query['name']}", b"")
            where = f"{self.url}/upload/storage/v1/b/{bucket}/o?upload_id={session}"
            return Answer(200, {}, {"Location": where})
        if query["uploadType"] == "media":
            key = f"{bucket}/{query['name']}"
            expected = self._is_expected(key, query)
            return self._write(key, body) if expected else failure(412, "another generation")
        boundary = b"--" + headers["Content-Type"].partition("boundary=")[2].strip("\"'").encode()
        _, described, rest = body.split(boundary, 2)
        end = b"\r\n" if rest.startswith(b"\r\n") else b"\n"
        key = f"{bucket}/{json.loads(described.partition(end + end)[2])['name']}"
        if not self._is_expected(key, query):
            return failure(412, "another generation")
        return self._write(key, rest.partition(end + end)[2].rpartition(end + boundary)[0])

    def _upload_chunk(self, session: str, place: str, body: bytes) -> Answer:
        """Adds a chunk; the object is there when the whole size is known and has come."""
        key, content = self._uploads[session]
        span, _, size = place.removeprefix("bytes ").partition("/")
        start = int(span.partition("-")[0]) if span != "*" else len(content)
        content = content[:start] + body
        self._uploads[session] = (key, content)
        if size == "*" or len(content) < int(size):
            return Answer(308, b"", {"Range": f"bytes=0-{len(content) - 1}"})
        return self._write(key, content)


def lead_here(store: FakeBucket, monkeypatch: Any) -> None:
    """Lets gs:// lead this process to the store while a test runs."""
    import fsspec
    import gcsfs
    from etils.epath import backend

    from hyla_lm import storage as files

    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(fsspec.config.conf, "gcs", {"token": "anon"})
    monkeypatch.setattr(files, "_answered", set())
    if kinds := sys.modules.get("gcsfs.extended_gcsfs"):  # asks by gRPC, which is not served

        async def kind(*_: object) -> Any:
            return kinds.BucketType.NON_HIERARCHICAL

        monkeypatch.setattr(gcsfs.GCSFileSystem, "_get_bucket_type", kind)
    gcsfs.GCSFileSystem.clear_instance_cache()
    backend.fsspec_backend._get_filesystem.cache_clear()


def hurry(monkeypatch: Any) -> None:
    """Lets nobody wait between the tries of a read, except array_record's own client."""
    from hyla_lm import storage

    monkeypatch.setattr(storage, "RETRY_SECONDS", (1e-3,))
    monkeypatch.setattr(storage, "GIVE_UP_SECONDS", 1.0)
    sleep = SimpleNamespace(sleep=lambda _: asyncio.sleep(1e-3))
    monkeypatch.setattr("gcsfs.retry.asyncio", sleep)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_: object) -> None:
        """Clients hang up in the middle of what they no longer need."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    store: FakeBucket

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.store.watcher(f"{self.command} {unquote(self.path)}")
        fault = self.store.fault_of(f"{self.command} {unquote(self.path)}")
        if fault:
            answer = failure(fault, "injected")
        else:
            answer = self.store.answer(self.command, self.path, self.headers, body)
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if fault == DROPPED:
            self.close_connection = True
        self.wfile.write(answer.body[: len(answer.body) // 2 if fault == DROPPED else None])

    do_GET = do_POST = do_PUT = do_DELETE = _serve

    def log_message(self, *_: object) -> None:
        """Says nothing."""
