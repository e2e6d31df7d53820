"""The bank of the transaction tests, with Kafka clients (librdkafka) as its tellers and gateways that are killed."""

import pytest

from tests.support.bank import Auditor, Clients, killed_in_turn, open_bank

COUNT, KILLS = 8, 2
TELLERS = ["a", "b"]


@pytest.mark.slow
def test_transfers_are_atomic_while_gateways_are_killed(cluster, cluster_address, gateways):
    open_bank(cluster, cluster_address)
    servers = ",".join(gateway.address for gateway in gateways)
    tellers = Clients(servers, TELLERS, COUNT)
    with (
        Auditor(cluster, TELLERS, lambda: set(tellers.acknowledged)) as auditor,
        tellers,
        killed_in_turn(gateways, tellers, len(TELLERS) * COUNT // (KILLS + 1), KILLS) as killed,
    ):
        pass
    assert auditor.audit().following == dict.fromkeys(TELLERS, COUNT)
    assert len(killed) == KILLS
    assert killed[-1] < len(TELLERS) * COUNT
