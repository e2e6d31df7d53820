"""Fixtures that every test may use; the servers behind them are in tests/support."""

import asyncio
import functools
import gc
import inspect
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
import sqlalchemy as sa
import typer.testing
from hypothesis import settings
from pyspark.sql import SparkSession

from spark_log.cluster.cluster import Cluster
from spark_log.maintenance.client_log import ClientLog
from spark_log.metadata import store_schema
from spark_log.metadata.address import SQLITE_FILE
from tests.support.kafka_programs import connector_jars
from tests.support.postgres import PostgresNotInstalledError, PostgresServer
from tests.support.s3 import S3Server
from tests.support.spark import ENVIRONMENT, session
from tests.support.stores import ONE_STORE_FILES, ONE_STORE_TESTS, STORES, TWO_STORES

# CliRunner would build the tree of commands for each invocation.
typer.testing._get_command = functools.cache(typer.testing._get_command)

os.environ.update(ENVIRONMENT)
os.environ.pop("SPARK_CONF_DIR", None)  # the developer's own settings

# A shared machine makes single examples slow by chance; a hang is pytest-timeout's to find.
settings.register_profile("spark-log", deadline=None, print_blob=True)
settings.load_profile("spark-log")


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the marks
def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
    """Leave out PostgreSQL for tests marked `on_sqlite`, and two stores unless they have the mark `on_data_store`. Make
    groups for `--dist loadgroup`: the tests of a group run in one worker, all others wherever a worker is free.

    The tests that share a SparkSession are one group, and so are those that share a fixture of their module.
    """
    items[:] = [item for item in items if not _left_out(item)]
    if TWO_STORES:
        items[:] = [item for item in items if _store_of(item) == "two_stores" and not _needs_one_store(item)]
    for item in items:
        if "spark" in item.fixturenames:
            item.add_marker(pytest.mark.xdist_group("spark"))
        elif any(
            fixture.scope == "module" for found in item._fixtureinfo.name2fixturedefs.values() for fixture in found
        ):
            item.add_marker(pytest.mark.xdist_group(item.path.name))


def _left_out(item: pytest.Function) -> bool:
    if item.get_closest_marker("on_sqlite") is None:
        return False
    return _store_of(item) in ("postgres", *([] if item.get_closest_marker("on_data_store") else ["two_stores"]))


def _needs_one_store(item: pytest.Function) -> bool:
    return f"{item.path.parent.name}/{item.path.name}" in ONE_STORE_FILES or item.originalname in ONE_STORE_TESTS


def _store_of(item: pytest.Function) -> object:
    return item.callspec.params.get("cluster_address") if hasattr(item, "callspec") else None


def pytest_collection_finish() -> None:
    """Modules and collected tests live to the end: the garbage collector need not look at them again and again.

    It runs less often, too: most of what a test leaves is freed without it.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 10, 10)


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine function in an event loop of its own. pytest itself runs plain functions only."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}))
    return True


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A running PostgreSQL, fsync on. A test that restarts it leaves it running."""
    try:
        server = PostgresServer()
    except PostgresNotInstalledError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))
    try:
        server.start()
        yield server
    finally:
        server.kill()  # a clean shutdown would write for half a minute
        server.remove()


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> str:
    """URL of a database of this test alone, with the tables of a metadata store, and no cluster."""
    return postgres_server.create_prepared_database()


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with the tables of a metadata store, and no cluster."""
    path = tmp_path_factory.mktemp("template") / SQLITE_FILE
    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        store_schema.create(connection)
    engine.dispose()
    return path


@pytest.fixture(params=STORES)
def cluster_address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Address of a cluster to create: once a folder (SQLite), once a PostgreSQL URL; a folder for `also_on_s3`. With
    SPARK_LOG_TEST_STORES=two, all tests run in a cluster of two stores (`also_on_two_stores`) instead.

    The store has its tables already, since creating them takes most of the time of many tests.
    """
    if request.param not in ("postgres", "two_stores"):
        folder = tmp_path / "cluster"
        folder.mkdir()
        shutil.copyfile(request.getfixturevalue("sqlite_template"), folder / SQLITE_FILE)
        return str(folder)
    server: PostgresServer = request.getfixturevalue("postgres_server")
    return server.create_prepared_database()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """An empty cluster on SQLite. The contract suites have their own, on each store."""
    with Cluster.init(str(tmp_path / "cluster")) as cluster:
        yield cluster


@pytest.fixture
def log(cluster: Cluster) -> Iterator[ClientLog]:
    log = ClientLog(cluster)
    yield log
    log.close()


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    server = S3Server()
    server.start()
    yield server
    server.stop()


@pytest.fixture
def s3_uri(s3_server: S3Server) -> str:
    """A pyarrow.fs URI of an empty folder in object storage, of this test alone."""
    return s3_server.uri(uuid4().hex)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One local Spark for all tests: two cores, Delta, UTC.

    It interprets queries: for a test's few rows, compiling them takes longer. The other sessions of the tests have
    Spark's defaults.
    """
    interpreted = {"spark_sql_codegen_wholeStage": "false", "spark_sql_codegen_factoryMode": "NO_CODEGEN"}
    jars = {"spark_jars": connector_jars()}  # of Spark's Kafka connector, for the tests of the gateway
    spark = session("local[2]", tmp_path_factory.mktemp("warehouse"), **interpreted, **jars)
    yield spark
    spark.stop()
