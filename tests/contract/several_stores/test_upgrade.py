"""Upgrades of the stores of a cluster: home first, then each data store when it is first opened; the doctor opens none
that would have to be upgraded.
"""

import pytest
import sqlalchemy as sa

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.usage import cluster_usage
from spark_log.errors import UnsupportedVersionError
from spark_log.facts.doctor.examination import examine
from spark_log.facts.doctor.findings import Severity
from spark_log.ids import StoreId
from spark_log.metadata import tables as t
from spark_log.metadata.address import Address
from spark_log.metadata.store_opening import open_store
from spark_log.replication.controller.topic_operations import create_topic
from tests.support.records import topic_values
from tests.support.topics import append_to
from tests.support.versions import become_next_version

EAST = StoreId(1)


@pytest.fixture
def topic(stores):
    return create_topic(stores, "t", store="east")


def revision_at(url):
    engine = sa.create_engine(url)
    try:
        with engine.connect() as connection:
            return connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar_one()
    finally:
        engine.dispose()


def test_home_is_upgraded_first_and_a_data_store_when_it_is_first_opened(stores, topic, tmp_path, monkeypatch):
    address, east = stores.store.address.with_password, stores.at(EAST).store.address.url
    append_to(stores, topic, "before")
    before = t.SCHEMA_REVISION
    after = become_next_version(tmp_path, monkeypatch)
    with Cluster.open(address) as upgraded:
        assert (revision_at(address), revision_at(east)) == (after, before)
        assert topic_values(upgraded, topic.name) == [b"before"]
        assert (revision_at(address), revision_at(east)) == (after, after)
        with pytest.raises(UnsupportedVersionError):
            append_to(stores, topic, "of a process of the older version")
        append_to(upgraded, topic, "after")
        assert topic_values(upgraded, topic.name) == [b"before", b"after"]


def test_the_doctor_names_a_data_store_that_is_not_upgraded_and_upgrades_none(stores, topic, tmp_path, monkeypatch):
    address, east = stores.store.address.with_password, stores.at(EAST).store.address.url
    before = t.SCHEMA_REVISION
    after = become_next_version(tmp_path, monkeypatch)
    Cluster.open(address).close()
    findings = [each for each in examine(address) if each.severity.needs_action]
    assert [(each.severity, each.check) for each in findings] == [(Severity.WARNING, "schema")]
    assert findings[0].seen.startswith(f"store east: revision {before} is older than")
    assert revision_at(east) == before
    with Cluster.open(address) as upgraded:
        cluster_usage(upgraded)  # `spark-log status`
    assert revision_at(east) == after


def test_a_data_store_that_is_newer_than_home_is_refused_and_its_upgrade_of_home_makes_it_usable(
    stores, topic, tmp_path, monkeypatch
):
    """As after the restore of the home store from a backup of before the upgrade."""
    address, east = stores.store.address.with_password, stores.at(EAST).store.address
    append_to(stores, topic, "before")
    with monkeypatch.context() as newer:
        become_next_version(tmp_path, newer)
        open_store(Address.parse(east.with_password), store_id=EAST).close()
    with Cluster.open(address) as older, pytest.raises(UnsupportedVersionError, match="newer than this spark-log"):
        append_to(older, topic, "of a process of the older version")
    become_next_version(tmp_path / "again", monkeypatch)
    with Cluster.open(address) as newest:
        append_to(newest, topic, "after")
        assert topic_values(newest, topic.name) == [b"before", b"after"]
