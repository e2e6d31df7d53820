"""Fixtures of the failover tests."""

import pytest

from tests.support.postgres import postgres_pair


@pytest.fixture(scope="module")
def pair():
    """A primary with a synchronous standby, for the tests of one module."""
    with postgres_pair() as found:
        yield found
