"""Fixtures of the tests of the gateway."""

import pytest

from tests.support.server_processes import GatewayProcess


@pytest.fixture
def gateway(cluster, cluster_address, tmp_path):
    """A gateway of the cluster, without options."""
    with GatewayProcess(tmp_path, cluster_address) as running:
        yield running
