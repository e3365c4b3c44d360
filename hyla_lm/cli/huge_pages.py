"""Memory of the C library in huge pages, where Linux lends them to who asks.

A train step on CPU takes hundreds of MB and gives them back. In pages of 4 KiB that costs a fifth
of the step (docs/performance.md).
"""

import os
import sys

VARIABLE = "GLIBC_TUNABLES"
HUGE_PAGES = "glibc.malloc.hugetlb=1"


def start_with_huge_pages() -> None:
    """Starts this command anew with huge pages, unless the user has set GLIBC_TUNABLES.

    The C library reads the variable only when a process starts. Elsewhere than on Linux nothing
    happens.
    """
    if sys.platform == "linux" and VARIABLE not in os.environ:
        os.environ[VARIABLE] = HUGE_PAGES
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
