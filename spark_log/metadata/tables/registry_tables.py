"""Tables of the schema registry. Lock order: the row of `subject_config` for all subjects is locked before topics."""

from sqlalchemy import Boolean, Index, Integer, String, Text

from spark_log.metadata.tables.definition import column, tables_of

_table = tables_of("registry")

schema = _table(
    "schema",
    column("schema_id", Integer, "key, never reused: rows are never deleted", primary_key=True, autoincrement=False),
    column("type", String(16), "AVRO, JSON or PROTOBUF"),
    column("text", Text, "as it was registered first"),
    column("imports", Text, "JSON array of its references: name, subject, version"),
    column("hash", String(64), "SHA-256 of the type, the canonical text and the references, hex", unique=True),
    comment="Schemas of the registry. The same schema under several subjects has one row.",
)

subject_version = _table(
    "subject_version",
    column("subject", String(512), "such as orders-value", primary_key=True),
    column("version", Integer, "from 1", primary_key=True, autoincrement=False),
    column("schema_id", Integer, "schema.schema_id"),
    column("deleted", Boolean, "soft deletion: listed only on request"),
    Index(None, "schema_id"),
    comment="The versions of each subject.",
)

subject_config = _table(
    "subject_config",
    column("subject", String(512), "subject_version.subject; empty: all subjects without a row", primary_key=True),
    column("compatibility", String(32), "compatibility level; NULL: that of all subjects", nullable=True),
    column("mode", String(32), "READWRITE, READONLY or IMPORT; NULL: that of all subjects", nullable=True),
    comment="Compatibility and mode. Each write to the registry locks the row of all subjects.",
)
