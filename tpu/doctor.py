"""Checks a TPU host before a run: hyla-lm tpu doctor runs it on every host."""

import argparse
import dataclasses
import email.utils
import json
import os
import platform
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from hyla_lm import ending
from hyla_lm.cli.parser import Parser
from hyla_lm.errors import UserError
from hyla_lm.tpu.job import Slice

PACKAGES = ("hyla_lm", "jax", "libtpu")
OK, WARN, FAIL = "ok", "warn", "fail"
DEVICES = ("/dev/accel", "/dev/vfio/")
DEVICE_SECONDS = 180
COUNT_DEVICES = "import jax; print(jax.local_device_count(), jax.device_count())"
CLOCKS = ("http://metadata.google.internal/", "https://storage.googleapis.com/")
SKEW_WARN_SECONDS, SKEW_FAIL_SECONDS = 5, 60
DISK_WARN_BYTES, DISK_FAIL_BYTES = 20e9, 5e9


@dataclass(frozen=True)
class Check:
    """One line: the thing checked, its state, what was found and what to do."""

    name: str
    level: str
    found: str
    advice: str = ""


def main(
    arguments: Sequence[str] | None = None,
    look: Callable[[argparse.Namespace], list[Check]] | None = None,
) -> int:
    """Runs the checks and returns the status: 1 if one fails, else as hyla_lm.ending counts."""
    options = _parser().parse_args(arguments)
    return ending.run("tpu.doctor", lambda: show(options, (look or look_at_host)(options)))


def show(options: argparse.Namespace, found: Sequence[Check]) -> int:
    """Prints the table; status 1 if a check failed."""
    if options.json:
        lines = [dataclasses.asdict(check) for check in found]
        print(json.dumps({"host": platform.node(), "checks": lines}))
    else:
        print(table(found))
    return int(any(check.level == FAIL for check in found))


def look_at_host(options: argparse.Namespace) -> list[Check]:
    """All checks, ordered so that a failure explains the later ones."""
    part = Slice(options.accelerator_type)
    return [
        check_holders(),
        check_versions(),
        check_devices(part),
        *([check_bucket(options.bucket)] if options.bucket else []),
        check_clock(),
        check_disk(Path.home()),
    ]


def table(found: Sequence[Check]) -> str:
    """One line for each check, followed by what to do if something is wrong."""
    lines = [platform.node()]
    for check in found:
        lines.append(f"{check.level:<5} {check.name:<8} {check.found}")
        if check.advice:
            lines.append(f"{'':<14} -> {check.advice}")
    return "\n".join(lines)


def check_holders(proc: Path = Path("/proc"), devices: Path = Path("/dev")) -> Check:
    """The processes that have the chips open; a chip serves one process at a time."""
    present = [*devices.glob("accel*"), *devices.glob("vfio/[0-9]*")]
    if not present:
        advice = "Run this on a TPU host: hyla-lm tpu doctor does."
        return Check("chips", FAIL, "no /dev/accel* and no /dev/vfio/*", advice)
    holders = sorted(set(_holders(proc)))
    if not holders:
        return Check("chips", OK, f"{len(present)} device files, held by no process seen")
    found = "; ".join(f"held by {pid} {name}" for pid, name in holders)
    advice = f"End it: hyla-lm tpu stop for a trainer, else sudo kill {holders[0][0]}."
    return Check("chips", FAIL, found, advice)


def _holders(proc: Path) -> Iterator[tuple[int, str]]:
    for link in proc.glob("[0-9]*/fd/*"):
        try:
            target = os.readlink(link)
            command = (link.parents[1] / "cmdline").read_text().split("\0")
        except OSError:  # a process that ended meanwhile, or one of another user
            continue
        if target.startswith(DEVICES):
            yield int(link.parents[1].name), " ".join(command)[:60].strip()


def check_versions(installed: Callable[[str], str] = metadata.version) -> Check:
    """The versions of Python and of the packages that matter."""
    found = [f"python {platform.python_version()}"]
    for name in PACKAGES:
        try:
            found.append(f"{name} {installed(name)}")
        except metadata.PackageNotFoundError:
            advice = "Install: pip install -e '.[tpu,gcs]' in the checkout."
            return Check("versions", FAIL, f"{name} is not installed", advice)
    return Check("versions", OK, ", ".join(found))


def check_devices(part: Slice, count: Callable[[], tuple[int, int]] | None = None) -> Check:
    """Chips that JAX sees on this host and in all, against the accelerator type."""
    try:
        here, everywhere = (count or count_devices)()
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        advice = "See the line `chips`, and run this on all hosts at once: JAX waits for every one."
        return Check("devices", FAIL, _reason(error), advice)
    found = f"{here} here, {everywhere} in all"
    if (here, everywhere) == (part.chips // part.hosts, part.chips):
        return Check("devices", OK, found)
    advice = f"{part.accelerator} has {part.chips} on {part.hosts} hosts: check --accelerator-type."
    return Check("devices", FAIL, found, advice)


def count_devices() -> tuple[int, int]:
    """Counts devices in a process of its own, which frees the chips and may time out."""
    done = subprocess.run(
        [sys.executable, "-c", COUNT_DEVICES],
        env={**os.environ, "JAX_PLATFORMS": "tpu"},
        capture_output=True,
        text=True,
        timeout=DEVICE_SECONDS,
        check=True,
    )
    here, everywhere = done.stdout.split()
    return int(here), int(everywhere)


def _reason(error: Exception) -> str:
    if isinstance(error, subprocess.TimeoutExpired):
        return f"no answer in {error.timeout:.0f} s"
    lines = (getattr(error, "stderr", "") or str(error)).strip().splitlines()
    return lines[-1][:200] if lines else type(error).__name__


def check_bucket(folder: str) -> Check:
    """Writes, reads and deletes a small file in the folder, and looks at a bucket as Orbax does."""
    from hyla_lm.storage import as_path, bucket_errors, bucket_of, check_bucket_access

    text = f"doctor {time.time()}"
    try:
        with bucket_errors(folder):
            probe = as_path(folder) / f".doctor-{os.uname().nodename}-{os.getpid()}"
            probe.parent.mkdir(parents=True, exist_ok=True)
            probe.write_text(text)
            same = probe.read_text() == text
            probe.unlink()
        if bucket_of(folder):
            check_bucket_access(folder)
    except (OSError, UserError) as error:
        advice = (
            "Give the hosts' service account roles/storage.objectAdmin and "
            "roles/storage.legacyBucketReader on the bucket."
        )
        return Check("bucket", FAIL, f"{folder}: {error}", advice)
    if not same:
        return Check("bucket", FAIL, f"{folder}: reads another text than was written")
    return Check("bucket", OK, f"{folder}: written, read, deleted")


def check_clock(
    server_time: Callable[[], float | None] | None = None, now: Callable[[], float] = time.time
) -> Check:
    """This clock against the Date header of an answer from Google."""
    theirs = (server_time or ask_time)()
    if theirs is None:
        return Check("clock", WARN, "unknown: no server answered", "Check the network.")
    skew = now() - theirs
    # The header has whole seconds.
    level = OK if abs(skew) <= SKEW_WARN_SECONDS else WARN
    level = FAIL if abs(skew) > SKEW_FAIL_SECONDS else level
    advice = (
        "" if level == OK else "Set it: sudo systemctl restart chrony, or sudo chronyc makestep."
    )
    return Check("clock", level, f"{skew:+.0f} s", advice)


def ask_time() -> float | None:
    """Seconds since 1970 by the first server that answers, even with an error."""
    for url in CLOCKS:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                date = answer.headers["Date"]
        except urllib.error.HTTPError as error:
            date = error.headers["Date"]
        except OSError:
            continue
        if date:
            return email.utils.parsedate_to_datetime(date).timestamp()
    return None


def check_disk(folder: Path, free: Callable[[Path], int] | None = None) -> Check:
    """Free space on the disk of the package and the log."""
    left = (free or _free)(folder)
    level = FAIL if left < DISK_FAIL_BYTES else WARN if left < DISK_WARN_BYTES else OK
    advice = "" if level == OK else f"Delete what is old under {folder}, such as other versions."
    return Check("disk", level, f"{left / 1e9:.0f} GB free under {folder}", advice)


def _free(folder: Path) -> int:
    place = os.statvfs(folder)
    return place.f_bavail * place.f_frsize


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python -m hyla_lm.tpu.doctor", description=__doc__)
    parser.add_argument("--accelerator-type", default="v5litepod-16")
    parser.add_argument("--bucket", default="", help="folder that must be writable")
    parser.add_argument("--json", action="store_true", help="one line for programs")
    return parser


if __name__ == "__main__":
    ending.process(main)
