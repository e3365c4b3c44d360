"""Pictures of TensorBoard's tabs, by chromium: python docs/make_screenshots.py LOGDIR."""

import argparse
import asyncio
import base64
import io
import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from hyla_lm import ending
from hyla_lm.errors import UserError

PICTURES = Path(__file__).parent / "pictures"
SIZE = (1400, 900)
LONGEST_SECONDS = 120
LARGEST_BYTES = 150_000
# Elements that a tab has once its data is there; they are found in shadow roots and frames too.
TABS = {
    "timeseries": "line-chart",
    "scalars": "vz-line-chart2",
    "histograms": "vz-histogram-timeseries",
    "images": "tf-image-loader",
    "text": "tf-markdown-view",
    "profile": "iframe",
}
FIND = """
(() => {
  const found = [];
  const look = root => {
    found.push(...root.querySelectorAll(%s));
    root.querySelectorAll("*").forEach(one => {
      if (one.shadowRoot) look(one.shadowRoot);
      if (one.contentDocument) look(one.contentDocument);
    });
  };
  look(document);
  return found.filter(one => one.getClientRects().length > 0).length;
})()
"""


def main() -> int:
    """Runs the command and returns its status, as hyla_lm.ending counts them."""
    parser = argparse.ArgumentParser("make_screenshots", description=__doc__)
    parser.add_argument("logdir", help="folder of runs")
    parser.add_argument(
        "--port", type=int, default=0, help="TensorBoard's port; 0 takes a free one"
    )
    parser.add_argument("--output", type=Path, default=PICTURES, help="folder of the pictures")
    parser.add_argument("--tabs", nargs="+", default=list(TABS), choices=TABS, help="tabs to draw")
    options = parser.parse_args()
    return ending.run("make_screenshots", lambda: draw(**vars(options)))


def draw(logdir: str, port: int, output: Path, tabs: list[str]) -> None:
    """Writes tensorboard_TAB.png of each tab; raises UserError for one that draws nothing."""
    output.mkdir(parents=True, exist_ok=True)
    with tensorboard(logdir, port or free_port()) as address, chromium() as debugger:
        for tab in tabs:
            shot = asyncio.run(picture(debugger, f"{address}/#{tab}", TABS[tab]))
            path = output / f"tensorboard_{tab}.png"
            path.write_bytes(small(shot))
            print(f"{path}: {path.stat().st_size:,} bytes")


@contextmanager
def tensorboard(logdir: str, port: int) -> Iterator[str]:
    command = [sys.executable, "-m", "tensorboard.main", f"--logdir={logdir}", f"--port={port}"]
    address = f"http://localhost:{port}"
    with running(command):
        until(f"{address} shows runs", lambda: read_json(f"{address}/data/runs"))
        yield address


@contextmanager
def chromium() -> Iterator[str]:
    """A browser without a window; yields the address at which it is told what to do."""
    with tempfile.TemporaryDirectory() as profile:
        flags = ["--headless", "--no-sandbox", "--hide-scrollbars", "--remote-debugging-port=0"]
        flags += [f"--user-data-dir={profile}", f"--window-size={SIZE[0]},{SIZE[1]}"]
        port_file = Path(profile, "DevToolsActivePort")
        with running(["chromium", *flags, "about:blank"]):
            until("chromium listens", port_file.exists)
            time.sleep(1)
            yield f"http://localhost:{port_file.read_text().splitlines()[0]}"


async def picture(debugger: str, url: str, selector: str) -> bytes:
    """The page as PNG, once it has such elements and two looks at it are alike."""
    from tornado.websocket import websocket_connect

    new = urllib.request.Request(f"{debugger}/json/new?about:blank", method="PUT")
    with urllib.request.urlopen(new) as answer:
        page = json.load(answer)
    socket = await websocket_connect(page["webSocketDebuggerUrl"], max_message_size=1 << 28)

    async def tell(method: str, **arguments: Any) -> dict[str, Any]:
        await socket.write_message(json.dumps({"id": 1, "method": method, "params": arguments}))
        while (message := json.loads(str(await socket.read_message()))).get("id") != 1:
            pass
        result: dict[str, Any] = message["result"]
        return result

    async def shot() -> bytes:
        return base64.b64decode((await tell("Page.captureScreenshot", format="png"))["data"])

    width, height = SIZE
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    await tell("Emulation.setDeviceMetricsOverride", **metrics)
    await tell("Page.navigate", url=url)
    expression, before = FIND % json.dumps(selector), b""
    deadline = time.monotonic() + LONGEST_SECONDS
    while time.monotonic() < deadline:
        await asyncio.sleep(2)
        found = await tell("Runtime.evaluate", expression=expression)
        now = await shot()
        if found["result"].get("value") and now == before:
            socket.close()
            return now
        before = now
    raise UserError(f"{url} drew nothing in {LONGEST_SECONDS} s: give a logdir with such data.")


def small(png: bytes) -> bytes:
    """The picture with fewer colours, and cropped from below while it is too large."""
    from PIL import Image

    image = Image.open(io.BytesIO(png)).convert("RGB")
    for colours in (256, 128, 64, 32, 16):
        out = io.BytesIO()
        image.quantize(colours, dither=Image.Dither.NONE).save(out, "PNG", optimize=True)
        if out.tell() < LARGEST_BYTES:
            return out.getvalue()
    width, height = image.size
    out = io.BytesIO()
    image.crop((0, 0, width, height * 2 // 3)).save(out, "PNG")
    return small(out.getvalue())


@contextmanager
def running(command: list[str]) -> Iterator[None]:
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(command, **quiet)  # type: ignore[call-overload]
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def until(what: str, look: Callable[[], Any]) -> None:
    """Returns when `look` returns something true; raises UserError if it never does."""
    deadline = time.monotonic() + LONGEST_SECONDS
    while time.monotonic() < deadline:
        with suppress(OSError, ValueError):
            if look():
                return
        time.sleep(0.5)
    raise UserError(f"waited {LONGEST_SECONDS} s in vain until {what}.")


def read_json(url: str) -> Any:
    with urllib.request.urlopen(url) as answer:
        return json.load(answer)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port: int = free.getsockname()[1]
        return port


if __name__ == "__main__":
    sys.exit(main())
