"""A batch with bad bytes is decoded: bad values have a reason, and the other values are not affected."""

import random

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StringType, StructType

from spark_log.log.columns.protobuf.columns import structs_of
from spark_log.log.columns.protobuf.messages import message_class
from spark_log.spark.streams.formats.protobuf import messages_of, schema_of
from tests.support.schemas import FLIGHT_DESCRIPTOR_SET, Order, flight_bytes

STRICT = message_class("Strict", FLIGHT_DESCRIPTOR_SET)
UA = flight_bytes("UA", 3)
WHOLE = {
    STRICT: b"\x08\x01\x10\x01\x1a\x06" + UA + b"\x1a\x06" + UA + b"\x22\x05\x0a\x01x\x10\x01",
    Order: Order(
        id="é", count=-1, note="n", line={"name": "a", "at": {"seconds": 5}}, lines=[{"name": "b"}, {"amount": 2}],
        tags=["x", "y"], prices={"p": 0.5}, parts={1: {"name": "c"}}, state=1, states=[0, 1], at={"nanos": 7},
        serial=9, crc=8, data=b"z", ok=True, total=-5, rates=[0.5], kinds={True: 1},
    ).SerializeToString(deterministic=True),
}  # fmt: skip


@pytest.mark.parametrize("kind", [STRICT, Order], ids=["proto2", "proto3"])
def test_damaged_bytes_affect_only_their_own_value(kind):
    whole, chance = WHOLE[kind], random.Random(6)
    values = [whole[:end] for end in range(len(whole))]
    for _ in range(4000):
        wrong = bytearray(whole)
        for _ in range(chance.randint(1, 3)):
            wrong[chance.randrange(len(wrong))] = chance.randrange(256)
        values.append(bytes(wrong))
    arrow = to_arrow_type(
        StructType().add("value", schema_of(kind.DESCRIPTOR)).add("error", StringType()), timezone="UTC"
    )
    found = structs_of(pa.array([each for value in values for each in (value, whole)]), kind, arrow)
    found.validate(full=True)
    bad = [row for row in found if row["error"].is_valid]
    assert len(values) * 0.2 < len(bad) < len(values)
    assert len(set(map(str, found[1::2]))) == 1, "all undamaged values are equal"
    good = found.filter(pa.compute.is_null(found.field("error")))
    again = [each.SerializeToString() for each in messages_of(good.field("value"), kind.DESCRIPTOR)]
    assert good.field("value").equals(structs_of(pa.array(again, pa.binary()), kind, arrow).field("value")), (
        "decoded values encode to bytes that decode to the same"
    )
