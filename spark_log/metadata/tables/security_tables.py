"""Tables of the users of gateways and of their rights."""

from sqlalchemy import Integer, LargeBinary, SmallInteger, String

from spark_log.metadata.tables.definition import column, tables_of

_table = tables_of("cluster/security")

scram_credential = _table(
    "scram_credential",
    column("user_name", String(249), "name of the user", primary_key=True),
    column("mechanism", SmallInteger, "1: SCRAM-SHA-256, 2: SCRAM-SHA-512", primary_key=True, autoincrement=False),
    column("salt", LargeBinary, "random"),
    column("iterations", Integer, "of PBKDF2"),
    column("stored_key", LargeBinary, "checks a client's proof (RFC 5802)"),
    column("server_key", LargeBinary, "makes the server's proof"),
    comment="What proves the password of a user of gateways. The password is not stored.",
)

acl = _table(
    "acl",
    column("acl_id", String(64), "digest of the other columns, hex", primary_key=True),
    column("resource_type", SmallInteger, "Kafka's ResourceType: 2 topic, 3 group, 4 cluster, 5 transactional id"),
    column("resource_name", String(249), "name, prefix, or * for all"),
    column("pattern_type", SmallInteger, "3: literal, 4: prefixed"),
    column("principal", String(1024), "such as User:anna; User:* for all"),
    column("host", String(249), "address of clients; * for all"),
    column("operation", SmallInteger, "Kafka's AclOperation"),
    column("permission", SmallInteger, "2: deny, 3: allow"),
    comment="Access control lists: rights of principals on resources, for clients of gateways.",
)
