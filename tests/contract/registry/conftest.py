"""Servers of registries, and what their transactions do."""

import threading

import pytest

from spark_log import Cluster
from spark_log.gateway.registry.server import serving
from spark_log.log.columns import definitions
from spark_log.metadata.store import Store


@pytest.fixture
def url(cluster):
    with serving(cluster, "127.0.0.1", 0) as server:
        yield server.url


@pytest.fixture
def elsewhere(tmp_path):
    """Another cluster, whose registry is the external one of the first."""
    with Cluster.init(str(tmp_path / "elsewhere")) as other:
        yield other


@pytest.fixture
def under_locks(monkeypatch):
    """A function that returns a list, which gets from then on what `count` counts within each transaction, for which
    other writers wait. `prepare` is called before each one.
    """

    def watch(count, prepare=lambda: None):
        transact, counts = Store.transact, []

        def spied(*arguments, **others):
            prepare()
            before = count()
            try:
                return transact(*arguments, **others)
            finally:
                counts.append(count() - before)

        monkeypatch.setattr(Store, "transact", spied)
        return counts

    return watch


@pytest.fixture
def defined(monkeypatch):
    """A list with the thread of each definition of columns."""
    define, made = definitions.define, []
    monkeypatch.setattr(
        definitions, "define", lambda *given, **named: made.append(threading.get_ident()) or define(*given, **named)
    )
    return made
