"""A topic that follows a subject, through random histories: each value is decoded with the schema of its id, or is bad
as long as the id is unknown; in the tail, in files of every age, and after every rewrite.
"""

import io
import json
import random

import fastavro
import pyarrow as pa
import pytest

from spark_log import Registry
from spark_log.errors import IncompatibleSchemaError
from spark_log.log.columns.key_and_value import PARTS, TYPED
from spark_log.log.log import Records
from spark_log.log.records.schema import RECORD_SCHEMA, read_schema
from spark_log.maintenance import run_tasks
from spark_log.maintenance.client_log import ClientLog
from tests.support.records import read_rows, table
from tests.support.topics import make

KINDS = {"long": 7, "string": "x", "double": 0.5, "boolean": True}


class History:
    def __init__(self, cluster, seed):
        self.random = random.Random(seed)
        self.cluster, self.registry, self.log = cluster, Registry(cluster), ClientLog(cluster)
        self.registry.set_compatibility("NONE")
        self.by_id, self.sent, self.fields = {}, [], {"base": "long"}
        self.register()
        self.topic = make(
            cluster, "t", value_format="avro", value_framing="confluent", value_schema="registry:s",
            key_format="avro", key_framing="confluent", key_schema="registry:s", retention_ms="-1",
            inline_max_bytes="2000",
        )  # fmt: skip

    def register(self):
        """The next version: some of the fields so far, and perhaps a new one, which may have a type that is refused."""
        fields = {name: self.fields[name] for name in self.fields if name == "base" or self.random.random() < 0.7}
        name = f"f{self.random.randrange(12)}"
        fields[name] = self.random.choice(list(KINDS))
        schema = {"type": "record", "name": "R", "fields": [
            {"name": each, "type": ["null", kind], "default": None} for each, kind in fields.items()]}  # fmt: skip
        try:
            found = self.registry.register("s", json.dumps(schema))
        except IncompatibleSchemaError as error:
            assert name in str(error) and self.fields[name] != fields[name]
            return
        assert self.fields.setdefault(name, fields[name]) == fields[name]
        self.by_id[found.id] = fastavro.parse_schema(schema)

    def values(self, count):
        """Values of known schemas, some of ids that are not known yet, and some of a damaged header."""
        for _ in range(count):
            number = self.random.choice([*self.by_id, *self.by_id, max(self.by_id) + 1])
            schema = self.by_id.get(number) or self.by_id[max(self.by_id)]
            record = {field["name"]: self.random.choice([None, KINDS[field["type"][1]]]) for field in schema["fields"]}
            stream = io.BytesIO()
            fastavro.schemaless_writer(stream, schema, record)
            yield bytes([self.random.randrange(8) == 7]) + number.to_bytes(4) + stream.getvalue()

    def append(self, count):
        values = list(self.values(count))
        records = table(*[""] * count)
        for place, part in enumerate(PARTS):  # the keys are the values
            records = records.set_column(place, RECORD_SCHEMA.field(part.source), pa.array(values, pa.binary()))
        self.log.append(self.log.find_topic("t"), [Records(0, records)])
        self.sent += values

    def check(self):
        topic = self.log.find_topic("t")
        for _, definition in topic.columns.parts:
            assert {*definition.schemas_by_id} == {*self.by_id}
            assert {*definition.fields.names} == {*self.fields}
        schema = read_schema(columns=["offset", "value", *TYPED], typed=topic.columns.fields)
        found = read_rows(self.log, topic, schema)
        assert [row["value"] for row in found] == self.sent
        for row in found:
            assert row["key_record"] == row["record"] and row["key_record_error"] == row["record_error"]
            number = int.from_bytes(row["value"][1:5])
            if row["value"][0]:
                assert row["record_error"] == "does not begin with Confluent's framing"
            elif number not in self.by_id:
                assert row["record_error"] == f"unknown schema id {number}"
            else:
                self.check_record(row, self.by_id[number])

    def check_record(self, row, schema):
        """A value whose id was unknown when it was sent may be of another schema; then both say so, or agree."""
        stream = io.BytesIO(row["value"][5:])
        try:
            expected = fastavro.schemaless_reader(stream, schema, None)
            assert not stream.read()
        except Exception:
            assert row["record"] is None and row["record_error"] is not None
            return
        assert row["record_error"] is None
        assert row["record"] == {name: expected.get(name) for name in self.fields}


@pytest.mark.parametrize(
    ("cluster_address", "seed"),
    [("sqlite", 0), ("sqlite", 1), ("postgres", 2), ("postgres", 3)],
    indirect=["cluster_address"],
)
def test_each_value_is_decoded_with_the_schema_of_its_id(cluster, seed):
    history = History(cluster, seed)
    steps = [
        history.register,
        lambda: history.append(3),
        lambda: history.append(400),
        lambda: list(run_tasks(cluster, ["seal"], now=True)),
        lambda: list(run_tasks(cluster, ["merge"], now=True)),
        lambda: list(run_tasks(cluster, ["columns"], now=True)),
    ]
    for _ in range(30):
        history.random.choice(steps)()
    history.check()
    list(run_tasks(cluster, ["seal", "columns"], now=True))
    history.check()
    history.log.close()
