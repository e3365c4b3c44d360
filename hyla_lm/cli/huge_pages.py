"""Memory of the C library in huge pages, where Linux lends them to who asks.

A train step on CPU takes hundreds of MB and gives them back. In pages of 4 KiB that costs a fifth
of the step (docs/performance.md).
"""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

VARIABLE = "GLIBC_TUNABLES"
HUGE_PAGES = "glibc.malloc.hugetlb=1"
ACCELERATORS = ("accel*", "vfio/[0-9]*", "nvidia[0-9]*")  # below /dev


def start_with_huge_pages(trains: bool = False) -> None:
    """Starts hyla-lm train on a CPU anew with huge pages, unless the user set GLIBC_TUNABLES.

    `trains` says that another program trains, such as a benchmark.

    The C library reads the variable only when a process starts, so it is removed then: processes
    that this one starts have the environment that the user gave.
    """
    wants_accelerator = os.environ.get("JAX_PLATFORMS") != "cpu"
    if os.environ.get(VARIABLE) == HUGE_PAGES:
        del os.environ[VARIABLE]
    elif not (trains or sys.argv[1:2] == ["train"]) or VARIABLE in os.environ:
        return
    elif sys.platform == "linux" and not (wants_accelerator and _has_accelerator()):
        os.environ[VARIABLE] = HUGE_PAGES
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def choose_cpu() -> None:
    """Takes the CPU where libtpu is installed, to compile for TPUs, and there are none.

    libtpu would look for them, with warnings. JAX_PLATFORMS of the user stays.
    """
    if find_spec("libtpu") is not None and not _has_accelerator():
        os.environ.setdefault("JAX_PLATFORMS", "cpu")


def _has_accelerator() -> bool:
    return any(any(Path("/dev").glob(pattern)) for pattern in ACCELERATORS)
