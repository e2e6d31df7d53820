"""Reads how many replicas each live broker and log dir has, for the placement of new ones."""

import sqlalchemy as sa

from spark_log.cluster.brokers import alive_log_dirs, keep_brokers
from spark_log.metadata import tables as t
from spark_log.metadata.sql_columns import BROKER, LOG_DIR, REPLICA
from spark_log.metadata.store_clock import StoreClock
from spark_log.replication.controller.placement import BrokerLoad


def read_loads(connection: sa.Connection, now: StoreClock) -> list[BrokerLoad]:
    """Return the live brokers, with the number of replicas in their live log dirs. Lock the brokers, so that none is
    removed until the end of the transaction.
    """
    keep_brokers(connection)
    alive = alive_log_dirs(connection, now)
    counts = sa.select(REPLICA.log_dir_id, sa.func.count().label("replicas")).group_by(REPLICA.log_dir_id).subquery()
    query = (
        sa.select(LOG_DIR.broker_id, BROKER.rack, LOG_DIR.log_dir_id, sa.func.coalesce(counts.c.replicas, 0))
        .join(t.broker, BROKER.broker_id == LOG_DIR.broker_id)
        .outerjoin(counts, counts.c.log_dir_id == LOG_DIR.log_dir_id)
        .order_by(LOG_DIR.broker_id, LOG_DIR.log_dir_id)
    )
    brokers: dict[int, tuple[str | None, dict[int, int]]] = {}
    for broker_id, rack, log_dir_id, replicas in connection.execute(query):
        if log_dir_id in alive:
            brokers.setdefault(broker_id, (rack, {}))[1][log_dir_id] = replicas
    return [BrokerLoad(broker_id, rack, load) for broker_id, (rack, load) in brokers.items()]
