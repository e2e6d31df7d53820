"""A later version of spark-log: the code of this tree with one more migration of the metadata store."""

import shutil
from pathlib import Path

import pytest

from spark_log.metadata import migrations
from spark_log.metadata import tables as t
from spark_log.metadata.connections.schema_fence import number_of

REPOSITORY = Path(__file__).parents[2]

ADD_ZONE = """
    op.add_column("broker", sa.Column("zone", sa.Text(), nullable=False, server_default="none"))
"""


def next_revision() -> str:
    return f"v{number_of(t.SCHEMA_REVISION) + 1}"


def oldest_revision(additive: bool) -> str:
    return t.OLDEST_REVISION if additive else next_revision()


def become_next_version(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, additive: bool = False, upgrade: str = ADD_ZONE
) -> str:
    """From now on the code of this process is the next version, for each store that it opens. Returns its revision.

    `upgrade` is the body of the migration, which is written to a copy of the migrations in `folder`.
    """
    revision, oldest = next_revision(), oldest_revision(additive)
    copied = folder / "migrations"
    shutil.copytree(migrations.FOLDER, copied)
    _write_migration(copied, additive, upgrade)
    monkeypatch.setattr(migrations, "FOLDER", copied)
    monkeypatch.setattr(t, "SCHEMA_REVISION", revision)
    monkeypatch.setattr(t, "OLDEST_REVISION", oldest)
    return revision


def write_next_version(folder: Path, *, additive: bool) -> Path:
    """Write the package of the next version; returns the folder for PYTHONPATH."""
    package = folder / "spark_log"
    shutil.copytree(REPOSITORY / "spark_log", package, ignore=shutil.ignore_patterns("__pycache__"))
    definitions = package / "metadata" / "tables" / "__init__.py"
    text = definitions.read_text()
    for name, value in (("SCHEMA_REVISION", next_revision()), ("OLDEST_REVISION", oldest_revision(additive))):
        before = f'{name} = "{getattr(t, name)}"'
        assert text.count(before) == 1
        text = text.replace(before, f'{name} = "{value}"')
    definitions.write_text(text)
    _write_migration(package / "metadata" / "migrations", additive, ADD_ZONE)
    return folder


def _write_migration(migrations_folder: Path, additive: bool, upgrade: str) -> None:
    (migrations_folder / "versions" / f"{next_revision()}.py").write_text(
        f"""
import sqlalchemy as sa
from alembic import op

revision = "{next_revision()}"
down_revision = "{t.SCHEMA_REVISION}"
additive = {additive}


def upgrade():
{upgrade}
"""
    )
