"""The tests of a job's arguments name no cluster: it is in the environment."""

import pytest


@pytest.fixture(autouse=True)
def cluster_in_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_LOG_CLUSTER", "/data/log")
