"""Spark changes a topic's Iceberg table: the next publication of spark-log makes it the log's again."""

import pytest

from spark_log.tables.publication import delta_tables, publish
from tests.support.iceberg import CONFIGS, SparkError, assert_table_is_the_log, rows_of
from tests.support.topics import append, make

pytestmark = [pytest.mark.delta, pytest.mark.on_sqlite, pytest.mark.spark41]

MERGE_ON_READ = "ALTER TABLE {0} SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')"
INSERT = "INSERT INTO {0} SELECT partition, base_offset + 100, * EXCEPT (partition, base_offset) FROM {0}"
CHANGES = {
    "insert": [INSERT],
    "insert nulls": ["INSERT INTO {0} SELECT 0, NULL, * EXCEPT (partition, base_offset) FROM {0}"],
    "overwrite": ["INSERT OVERWRITE {0} SELECT * FROM {0} WHERE partition = 1"],
    "delete files": ["DELETE FROM {0} WHERE partition = 0"],
    "delete rows": ["DELETE FROM {0} WHERE offset_delta = 1"],
    "position deletes": [MERGE_ON_READ, "DELETE FROM {0} WHERE offset_delta = 1"],
    "deletion vectors": [
        "ALTER TABLE {0} SET TBLPROPERTIES ('format-version' = '3', 'write.delete.mode' = 'merge-on-read')",
        "DELETE FROM {0} WHERE offset_delta = 1",
    ],
    "rewrite data files": ["CALL log.system.rewrite_data_files(table => '{0}', options => map('rewrite-all', 'true'))"],
    "rewrite manifests": [INSERT, "CALL log.system.rewrite_manifests(table => '{0}')"],
    "columns": [
        "ALTER TABLE {0} RENAME COLUMN value TO other", "ALTER TABLE {0} ADD COLUMN more INT FIRST",
        "DELETE FROM {0} WHERE offset_delta = 1",
    ],
    "less partitions": ["ALTER TABLE {0} DROP PARTITION FIELD base_offset", "DELETE FROM {0} WHERE offset_delta = 1"],
    "other partitions": [
        "ALTER TABLE {0} DROP PARTITION FIELD partition", "ALTER TABLE {0} ADD PARTITION FIELD bucket(2, key)",
        "DELETE FROM {0} WHERE offset_delta = 1",
    ],
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_the_next_publication_undoes_a_change(spark41, cluster, log, change):
    topic = make(cluster, "t", 2, **CONFIGS, value_format="json", value_schema="n BIGINT")
    [location] = delta_tables(cluster, topic).values()
    table = spark41.table(location)
    append(log, topic, '{"n": 1}', '{"n": 2}', key=b"k")
    append(log, topic, '{"n": 3}', None, partition=1)
    publish(cluster, topic)
    before = snapshots(spark41, table)
    for statement in CHANGES[change]:
        spark41.sql(statement.format(table))
    assert len(snapshots(spark41, table)) > len(before)
    assert (deletes(spark41, table) != []) == (change in ("position deletes", "deletion vectors"))
    assert_table_is_the_log(spark41, cluster, log, topic)
    assert deletes(spark41, table) == []
    append(log, topic, '{"n": 4}', '{"n": 5}')
    assert len(assert_table_is_the_log(spark41, cluster, log, topic)) == 6
    assert spark41.scan(location, "partition = 0 AND record.n > 4") == (rows_of(log, topic)[3:4], 1)


PROCEDURES = [
    "CALL log.system.remove_orphan_files(table => '{0}', older_than => TIMESTAMP '2020-01-01')",
    "CALL log.system.expire_snapshots(table => '{0}', older_than => TIMESTAMP '2050-01-01')",
    "DROP TABLE {0} PURGE",
]


def test_spark_refuses_to_delete_files(spark41, cluster, log):
    """Segments of records that no table lists yet would be orphans, and earlier snapshots have files of the log."""
    topic = make(cluster, "t", 1, **CONFIGS)
    [location] = delta_tables(cluster, topic).values()
    for value in ("a", "b"):
        append(log, topic, value)
        publish(cluster, topic)
    for statement in PROCEDURES:
        with pytest.raises(SparkError, match=r"(?s)GC is disabled.*deleting files may corrupt other tables"):
            spark41.sql(statement.format(spark41.table(location)))
    assert_table_is_the_log(spark41, cluster, log, topic)


def snapshots(spark41, table):
    return spark41.sql(f"SELECT * FROM {table}.snapshots")


def deletes(spark41, table):
    return spark41.sql(f"SELECT file_path FROM {table}.delete_files")
