import numpy as np
import pyarrow as pa
from kafka.structs import TopicPartition

from spark_log.clients.consume import share_deliveries
from spark_log.clients.consume.share_deliveries import Deliveries
from spark_log.groups.share.rules import AcknowledgeType, Range

PARTITION, KEY = TopicPartition("t", 0), (1, 0)


def parts(*offsets, lock=1):
    """Ranges of one record each."""
    batches = [pa.record_batch({"offset": pa.array([offset], pa.int64())}) for offset in offsets]
    return [
        (Range(offset, offset + 1, lock, 0, 0, 1, "member"), batch)
        for offset, batch in zip(offsets, batches, strict=True)
    ]


def add(deliveries, new):
    deliveries.add(PARTITION, KEY, new, 1.0)


def return_all(deliveries):
    for each in deliveries:
        each.returned = len(each.offsets)


def test_a_later_delivery_replaces_the_earlier_one_of_its_records_except_acknowledgements():
    deliveries = Deliveries()
    add(deliveries, parts(0, 2, 4))
    return_all(deliveries)
    deliveries.mark("t", 0, 2, AcknowledgeType.RELEASE)
    add(deliveries, parts(0, 2, lock=2))
    assert [(each.acquired.lock, each.offsets.tolist()) for each in deliveries] == [
        (1, [2]), (1, [4]), (2, [0]), (2, [2])
    ]  # fmt: skip


def test_the_ranges_of_a_poll_are_not_compared_with_each_other(monkeypatch):
    """A poll of 500 ranges would take seconds. After releases, each record may be a range of its own."""
    compared = []
    monkeypatch.setattr(share_deliveries.np, "isin", lambda *both: compared.append(both) or isin(*both))
    deliveries = Deliveries()
    add(deliveries, parts(*range(0, 20, 2)))
    return_all(deliveries)
    deliveries.mark_rest(AcknowledgeType.ACCEPT)
    add(deliveries, parts(*range(20, 40, 2)))
    assert len(list(deliveries)) == 20 and compared == []


isin = np.isin
