"""Fixtures of the tests of maintenance tasks."""

import pytest

from spark_log.cluster.cluster import Cluster
from spark_log.maintenance.client_log import ClientLog
from spark_log.tables import publication_state


@pytest.fixture
def local(tmp_path):
    """A cluster on SQLite, for tests that do not depend on the kind of store."""
    with Cluster.init(str(tmp_path / "local")) as cluster:
        yield cluster


@pytest.fixture
def local_log(local):
    log = ClientLog(local)
    yield log
    log.close()


@pytest.fixture
def incremental(monkeypatch):
    """From now on publication may not compare whole tables."""

    def begin():
        monkeypatch.setattr(publication_state, "all_segments", None)

    return begin
