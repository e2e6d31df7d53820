"""Fixtures of the tests of the console."""

import pytest

from spark_log.console.routes import Allow
from tests.support.console import running_console


@pytest.fixture
def console(cluster):
    """A console with all changes."""
    with running_console(cluster, allow=frozenset(Allow)) as console:
        yield console
