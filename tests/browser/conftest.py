"""One browser for the tests of this folder, and a console on a cluster with hostile names and bytes."""

from collections.abc import Iterator

import pytest

from spark_log.console.routes import Allow
from tests.support.browser import running_browser, visiting
from tests.support.console import hostile_cluster, running_console


@pytest.fixture(scope="package")
def browser() -> Iterator[object]:
    """Of this folder only: playwright's event loop runs until the end, and other tests run their own."""
    with running_browser() as browser:
        yield browser


@pytest.fixture(scope="package")
def hostile(tmp_path_factory):
    """The console of a hostile cluster, with all changes allowed."""
    with (
        hostile_cluster(tmp_path_factory.mktemp("hostile")) as cluster,
        running_console(cluster, allow=frozenset(Allow)) as console,
    ):
        console.cluster = cluster
        yield console


@pytest.fixture
def visit(browser, hostile):
    """A visitor of the hostile cluster's console; it may not have done anything wrong at the end of the test."""
    with visiting(browser, hostile.url, hostile.printed[-1]) as visitor:
        yield visitor
    assert visitor.faults == []
