"""Publication has targets: tables of several formats over the same files."""

import sqlalchemy as sa
from alembic import op

revision = "v6"
down_revision = "v5"

_KEYS = {
    "publication": ["topic_id", "log_dir_id", "target"],
    "publication_cursor": ["topic_id", "log_dir_id", "target", "partition"],
    "publication_intent": ["topic_id", "log_dir_id", "target", "transaction_version"],
    "publication_intent_cursor": ["topic_id", "log_dir_id", "target", "transaction_version", "partition"],
}
_CHANGED: dict[str, dict[str, tuple[str | None, str]]] = {
    "publication": {
        "transaction_version": (None, "version of spark-log's app transaction in the last commit that spark-log made"),
        "delta_version": (
            "table_version",
            "the table's version with that commit; a higher one in the table was committed by another writer",
        ),
    },
    "publication_intent": {
        "delta_version": ("table_version", "the table's version that the commit will make"),
        "recorded_delta_version": (
            "recorded_table_version",
            "publication.table_version when the intent was written",
        ),
    },
}
"""The columns with another name or comment."""


def upgrade() -> None:
    """All earlier publications are in Delta tables."""
    for name, key in _KEYS.items():
        with op.batch_alter_table(name) as batch:
            target: sa.Column[str] = sa.Column(
                "target", sa.String(16), nullable=False, server_default="delta", comment="format of the table"
            )
            batch.add_column(target)
            for before, (after, comment) in _CHANGED.get(name, {}).items():
                batch.alter_column(before, new_column_name=after, comment=comment)
            batch.drop_constraint(f"pk_{name}", type_="primary")
            batch.create_primary_key(f"pk_{name}", key)
