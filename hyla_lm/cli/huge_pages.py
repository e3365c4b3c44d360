"""Memory of the C library in huge pages, where Linux lends them to who asks.

A train step on CPU takes hundreds of MB and gives them back. In pages of 4 KiB that costs a fifth
of the step (docs/performance.md).
"""

import os
import sys
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
    if os.environ.get(VARIABLE) == HUGE_PAGES:
        del os.environ[VARIABLE]
    elif not (trains or sys.argv[1:2] == ["train"]) or VARIABLE in os.environ:
        return
    elif sys.platform == "linux":
        has_accelerator = any(any(Path("/dev").glob(pattern)) for pattern in ACCELERATORS)
        if os.environ.get("JAX_PLATFORMS") == "cpu" or not has_accelerator:
            os.environ[VARIABLE] = HUGE_PAGES
            os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
