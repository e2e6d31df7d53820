"""Pickled objects for executors: sufficient to read and write, and without access to the metadata store."""

import io
import pickle
import pickletools
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.serializers import read_int
from pyspark.sql.types import StructType
from pyspark.sql.worker.plan_data_source_read import write_read_func_and_partitions
from pyspark.worker_util import pickleSer

from spark_log.cluster.cluster import Cluster
from spark_log.log.log import Records
from spark_log.maintenance.client_log import ClientLog
from spark_log.replication.controller.topic_operations import create_topic
from spark_log.spark.datasource.read.batch_reader import BatchReader
from spark_log.spark.datasource.read.stream_reader import StreamReader
from spark_log.spark.datasource.source import SparkLogDataSource
from spark_log.spark.datasource.write import address_handoff
from spark_log.spark.datasource.write.batch_writer import BatchWriter
from spark_log.spark.datasource.write.stream_writer import StreamTaskWriter, StreamWriter
from spark_log.spark.datasource.write.write_plan import TaskOutput, WritePlan
from tests.support.python_process import run_python
from tests.support.records import table

URL = "postgresql+psycopg://me:s3cret@metadata.example/log"
DRIVER_ONLY = ("sqlalchemy", "alembic", "deltalake", "kafka", "psycopg")


@pytest.fixture
def address(tmp_path: Path) -> str:
    """A cluster whose metadata store is not in its log dir: executors may get the path of the log dir only."""
    address = str(tmp_path / "the-address")
    with Cluster.init(address, log_dir=str(tmp_path / "log-dir")) as cluster:
        topic = create_topic(cluster, "t", 2, configs={"inline.max.bytes": "100"})
        log = ClientLog(cluster)
        log.append(topic, [Records(0, table("a", "b")), Records(1, table("x" * 10_000, "y"))])
        log.append(topic, [Records(0, table("c"))])
        log.close()
    return address


def sent(source: SparkLogDataSource, *, streaming: bool) -> bytes:
    """The bytes that Spark's planning worker returns: the read function, and the partitions of a batch."""
    schema = source.schema()
    reader = source.streamReader(schema) if streaming else source.reader(schema)
    out = io.BytesIO()
    write_read_func_and_partitions(
        out, reader=reader, data_source=source, schema=schema, max_arrow_batch_size=10_000, binary_as_bytes=True
    )
    return out.getvalue()


def globals_named(pickled: bytes) -> set[str]:
    """Every text in a pickle, which includes the names of modules, classes and attributes."""
    found: set[str] = set()
    for opcode, argument, _ in pickletools.genops(pickled):
        if isinstance(argument, str):
            found.add(argument)
        elif isinstance(argument, bytes) and opcode.name.endswith("BYTES") and argument[:2] == b"\x80\x05":
            found |= globals_named(argument)  # cloudpickle nests pickles
    return found


def first_pickle(framed: bytes) -> bytes:
    stream = io.BytesIO(framed)
    return stream.read(read_int(stream))


@pytest.mark.parametrize("streaming", [False, True])
def test_read_sends_no_address_to_executors(address: str, streaming: bool) -> None:
    source = pickle.loads(pickle.dumps(SparkLogDataSource({"cluster": address, "subscribe": "t"})))
    data = sent(source, streaming=streaming)
    assert b"the-address" not in data
    names = globals_named(first_pickle(data))
    assert not [name for name in names if name.startswith(DRIVER_ONLY)]
    planning = "spark_log.spark.datasource.read.read_planner"
    assert not [name for name in names if name.startswith(("spark_log.metadata", planning))]


@pytest.mark.parametrize("key", ["cluster", "kafka.bootstrap.servers"])
def test_read_sends_no_password_to_executors(key: str) -> None:
    options = {key: URL, "subscribe": "t"}
    for streaming in (False, True):
        source = SparkLogDataSource(options)
        reader: BatchReader | StreamReader = (
            source.streamReader(source.schema()) if streaming else source.reader(source.schema())
        )
        for travelling in (reader, source):  # Spark's read function holds both
            data = pickleSer.dumps(travelling)
            assert b"s3cret" not in data and b"metadata.example" not in data
        assert pickleSer.loads(pickleSer.dumps(source)).name() == "spark_log"


def test_unused_source_is_pickled_with_its_options() -> None:
    source = pickleSer.loads(pickleSer.dumps(SparkLogDataSource({"cluster": URL, "subscribe": "t", "Columns": "key"})))
    assert source.options["cluster"] == URL
    assert source.schema().fieldNames() == ["key"]


def test_reprs_hide_passwords() -> None:
    source = SparkLogDataSource({"cluster": URL, "subscribe": "t"})
    reader = source.reader(source.schema())
    assert "s3cret" not in repr(reader) + repr(reader._options)


def write_schema() -> StructType:
    return StructType().add("key", "binary").add("value", "string")


def test_write_sends_no_address_to_executors(address: str) -> None:
    source = SparkLogDataSource({"cluster": address, "topic": "t"})
    batch = source.writer(write_schema(), overwrite=False)
    stream = source.streamWriter(write_schema(), overwrite=False)
    for writer in (batch, stream):
        data = pickleSer.dumps(writer)
        assert b"the-address" not in data
        assert not [name for name in globals_named(data) if name.startswith((*DRIVER_ONLY, "spark_log.metadata"))]
    assert isinstance(pickleSer.loads(pickleSer.dumps(stream)), StreamTaskWriter)
    address_handoff.forget(batch._plan.write_id)


def test_stream_writer_pickled_twice_has_one_write_id(address: str) -> None:
    writer = SparkLogDataSource({"cluster": address, "topic": "t"}).streamWriter(write_schema(), overwrite=False)
    assert isinstance(writer, StreamWriter)
    plans: list[WritePlan] = [pickleSer.loads(pickleSer.dumps(writer))._plan for _ in range(2)]
    assert plans[0] == plans[1]


def test_commit_of_a_batch_write_finds_the_address(address: str) -> None:
    source = SparkLogDataSource({"cluster": address, "topic": "t"})
    writer = source.writer(write_schema(), overwrite=False)
    assert isinstance(writer, BatchWriter)
    kept = next(address_handoff._folder().glob(writer._plan.write_id))
    assert kept.stat().st_mode & 0o777 == 0o600 and kept.parent.stat().st_mode & 0o777 == 0o700
    on_executor = pickleSer.loads(pickleSer.dumps(writer))
    message = on_executor.write(iter([pa.record_batch({"key": [b"k"], "value": ["new"]})]))
    pickleSer.loads(pickleSer.dumps(on_executor)).commit([pickleSer.loads(pickleSer.dumps(message))])
    assert not kept.exists()
    with Cluster.open(address) as cluster:
        log = ClientLog(cluster)
        assert sum(end - start for start, end in log.positions(log.find_topic("t")).values()) == 6


READ = """
import io, sys
import pyarrow as pa
from pyspark.serializers import read_int
from pyspark.worker_util import pickleSer

stream = io.BytesIO(open(sys.argv[1], "rb").read())
function, schema = pickleSer._read_with_length(stream)
rows = 0
for _ in range(read_int(stream)):
    for batch in function(iter([pa.record_batch({"partition": [stream.read(read_int(stream))]})])):
        rows += batch.num_rows
print("rows", rows, sorted({name.partition(".")[0] for name in sys.modules} & set(sys.argv[2].split(","))))
"""

WRITE = """
import sys
import pyarrow as pa
from pyspark.worker_util import pickleSer

writer = pickleSer.loads(open(sys.argv[1], "rb").read())
values = ["small", "x" * 100_000]
message = writer.write(iter([pa.record_batch({"key": [None, b"k"], "value": values})]))
open(sys.argv[1], "wb").write(pickleSer.dumps(message))
print(sorted({name.partition(".")[0] for name in sys.modules} & set(sys.argv[2].split(","))))
"""


def test_executor_reads_without_the_libraries_of_the_driver(address: str, tmp_path: Path) -> None:
    file = tmp_path / "sent"
    file.write_bytes(sent(SparkLogDataSource({"cluster": address, "subscribe": "t"}), streaming=False))
    assert run_python(READ, str(file), ",".join(DRIVER_ONLY)).strip() == "rows 5 []"


@pytest.mark.parametrize("kind", ["batch", "stream"])
def test_executor_writes_without_the_libraries_of_the_driver(address: str, tmp_path: Path, kind: str) -> None:
    source = SparkLogDataSource({"cluster": address, "topic": "t"})
    writer = (source.writer if kind == "batch" else source.streamWriter)(write_schema(), overwrite=False)
    file = tmp_path / "sent"
    file.write_bytes(pickleSer.dumps(writer))
    assert run_python(WRITE, str(file), ",".join(DRIVER_ONLY)).strip() == "[]"
    message = pickleSer.loads(file.read_bytes())
    assert isinstance(message, TaskOutput) and message.record_count == 2
    if isinstance(writer, BatchWriter):
        writer.abort([message])
    else:
        writer.abort([message], 0)
