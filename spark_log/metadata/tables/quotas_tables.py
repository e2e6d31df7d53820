"""Tables of client quotas."""

from sqlalchemy import BigInteger, Double, String, Text

from spark_log.metadata.tables.definition import column, tables_of

_table = tables_of("cluster/quotas")

client_quota = _table(
    "client_quota",
    column("entity", Text, "JSON of types and names: user, client-id, ip; null: the default", primary_key=True),
    column("config", String(64), "such as producer_byte_rate", primary_key=True),
    column("value", Double, "per second; request_percentage: 100 is one thread"),
    comment="A limit of clients of gateways.",
)

quota_usage = _table(
    "quota_usage",
    column("bucket", String(64), "hash of the config and the names of those who share it", primary_key=True),
    column("used_until_us", BigInteger, "store clock in microseconds: when the use so far is paid for"),
    column("clock_epoch", String(64), "boot id of the host when used_until_us was written (SQLite)"),
    comment="How much of its quota each limited client has used, at all gateways.",
)
