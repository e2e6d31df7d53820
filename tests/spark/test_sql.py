"""Temporary views and tables in SQL."""

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from spark_log.cluster.cluster import Cluster
from spark_log.maintenance.client_log import ClientLog
from tests.support.schemas import document, typed
from tests.support.topics import append, fails, make


@pytest.fixture
def options(cluster: Cluster) -> str:
    make(cluster, "t")
    return f"cluster '{cluster.store.address}'"


def test_temporary_views_read_and_write_a_topic(spark: SparkSession, options: str) -> None:
    sql = spark.newSession().sql
    sql(f"CREATE TEMPORARY VIEW t USING spark_log OPTIONS ({options}, subscribe 't')")
    columns = "(key STRING, value STRING)"
    sql(f"CREATE TEMPORARY VIEW into_t {columns} USING spark_log OPTIONS ({options}, topic 't')")
    sql("INSERT INTO into_t VALUES ('a', '1'), ('b', '2')")
    sql("INSERT INTO into_t (value) VALUES ('3')")
    rows = sql("SELECT string(key), string(value) FROM t ORDER BY offset").collect()
    assert [tuple(row) for row in rows] == [("a", "1"), ("b", "2"), (None, "3")]
    with fails("A view for INSERT names its columns"):
        sql(f"CREATE TEMPORARY VIEW without_columns USING spark_log OPTIONS ({options}, topic 't')")


def test_the_view_of_a_typed_topic_has_its_columns(spark: SparkSession, cluster: Cluster, log: ClientLog) -> None:
    topic = typed(cluster)
    append(log, topic, document(1, item="tea"), document(2, item="jam"))
    sql = spark.newSession().sql
    options = f"cluster '{cluster.store.address}', subscribe '{topic.name}', columns 'offset,record'"
    sql(f"CREATE TEMPORARY VIEW orders USING spark_log OPTIONS ({options})")
    described = {row.col_name: row.data_type for row in sql("DESCRIBE orders").collect()}
    assert [*described] == ["offset", "record"] and described["record"].startswith("struct<item:string")
    rows = sql("SELECT record.item FROM orders WHERE record.n > 1").collect()
    assert [tuple(row) for row in rows] == [("jam",)]


def test_a_table_whose_options_would_be_lost_is_refused(spark: SparkSession, options: str) -> None:
    for create in (
        lambda: spark.sql(f"CREATE TABLE lost USING spark_log OPTIONS ({options}, subscribe 't')"),
        lambda: spark.catalog.createTable("lost", source="spark_log", subscribe="t"),
    ):
        with fails("would lose options: ", "Use CREATE TEMPORARY VIEW"):
            create()
    assert not spark.catalog.tableExists("lost")


def test_a_table_takes_the_options_of_each_query_or_names_the_way(spark: SparkSession, options: str) -> None:
    session = spark.newSession()
    session.conf.set("spark.sql.catalog.spark_catalog", "builtin")  # Delta's catalog has no tables of this kind
    session.sql("CREATE TABLE of_t (key STRING, value STRING) USING spark_log")
    try:
        [name, address] = options.split()
        session.sql(f"INSERT INTO of_t WITH ('{name}' = {address}, 'topic' = 't') VALUES ('a', '1')")
        with fails("Option 'cluster' must be specified", "name the options in each query"):
            session.sql("INSERT INTO of_t VALUES ('a', '1')")
    finally:
        session.sql("DROP TABLE of_t")


@pytest.mark.delta_jars
def test_spark_itself_refuses_tables_in_the_catalog_of_delta(spark: SparkSession, options: str) -> None:
    """This error is in the troubleshooting page: Spark raises it before it asks the data source."""
    spark.sql("CREATE TABLE of_delta (key STRING, value STRING) USING spark_log")
    try:
        with pytest.raises(AnalysisException, match="spark_log is not a valid Spark SQL Data Source"):
            spark.sql("SELECT * FROM of_delta")
    finally:
        spark.sql("DROP TABLE of_delta")
