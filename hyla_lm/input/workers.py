"""Worker processes that read: none outlives the process that started it."""

import os
from multiprocessing import parent_process
from threading import Thread


def end_with_parent() -> None:
    """Ends this worker as soon as its parent is gone, which a killed parent cannot ask for."""
    parent = parent_process()

    def wait() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    Thread(target=wait, daemon=True).start()
