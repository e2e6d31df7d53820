"""Table of the gateways for Kafka clients."""

from sqlalchemy import BigInteger, Integer, String, Text

from spark_log.metadata.tables.definition import SERIAL, column, tables_of

_table = tables_of("gateway")

gateway = _table(
    "gateway",
    column("gateway_id", SERIAL, "broker id for Kafka clients, never reused", primary_key=True, autoincrement=True),
    column("host", Text, "advertised host"),
    column("port", Integer, "advertised port"),
    column("zone", String(249), "failure domain, for clients that name theirs", nullable=True),
    column("holder", Text, "host and process, for display"),
    column("lease_until_ms", BigInteger, "store clock"),
    column("lease_clock_epoch", String(64), "boot id of the host when lease_until_ms was written (SQLite)"),
    comment="A running gateway: a process that serves Kafka's wire protocol.",
    sqlite_autoincrement=True,
)
