"""The first revision: the tables of the first release."""

revision = "v1"
down_revision = None


def upgrade() -> None:
    """Nothing to do: a new store is created with all its tables (`metadata/store_schema.py`)."""
