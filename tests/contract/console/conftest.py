"""Fixtures of the tests of the console."""

import pytest

from spark_log.console.routes import Allow
from tests.support.console import running_console
from tests.support.topics import fill, make


@pytest.fixture
def console(cluster):
    """A console with all changes."""
    with running_console(cluster, allow=frozenset(Allow)) as console:
        yield console


@pytest.fixture
def topics(cluster, log):
    """Topics seen (3 partitions with 5, 1 and 0 records) and hidden."""
    make(cluster, "seen", 3)
    make(cluster, "hidden", 1)
    fill(log, "seen", [5, 1, 0])
    fill(log, "hidden", [2])
