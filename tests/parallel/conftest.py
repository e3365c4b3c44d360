"""A run whose processes are threads."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from hyla_lm.parallel.rendezvous import Place, join
from tests.parallel.joining import RUN, Address, Joining, Start
from tests.parallel.processes import free_port


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as pool:
        yield pool


@pytest.fixture
def coordinator() -> str:
    return f"127.0.0.1:{free_port()}"


@pytest.fixture
def address(coordinator: str) -> Address:
    return Place(coordinator, 3, 0).address


@pytest.fixture
def start(pool: ThreadPoolExecutor, coordinator: str) -> Start:
    """Starts a process of a run of `count`."""

    def start(
        index: int, count: int = 3, run: str = RUN, seconds: float = 20, secret: str = ""
    ) -> Joining:
        return pool.submit(join, Place(coordinator, count, index), run, seconds, secret)

    return start
