"""What the checks of a produce request cost."""

from types import SimpleNamespace

import pyarrow as pa

from spark_log.config import TopicConfig
from spark_log.gateway.records import batch_checks
from spark_log.gateway.records.batch_checks import SentBatch, decoded_bytes_max
from spark_log.log.records.kafka_batch.decode import DecodingLimits
from tests.support.costly_requests import batch_of


def test_reasons_are_made_for_the_first_thousand_invalid_records_only(monkeypatch):
    made = []

    def reasons(records, _topic, _now_ms):
        made.append(records.num_rows)
        return {row: ValueError(row) for row in range(0, records.num_rows, 20)}

    monkeypatch.setattr(batch_checks, "_reasons", reasons)
    bad = batch_checks._bad_records(pa.table({"v": range(900_000)}), SimpleNamespace(config=TopicConfig()), 0, 1_000)
    assert list(bad) == list(range(0, 20_000, 20))
    assert sum(made) == 20_000


def test_a_small_zstd_batch_is_not_taken_for_all_of_the_memory():
    """A zstd block of four bytes may become 128 KiB (RFC 8878)."""
    batch = batch_of(bytes(500), 1, 4)
    limits = DecodingLimits(decompressed_bytes_max=2**27)
    assert decoded_bytes_max([SentBatch("t", 0, batch)], limits) == len(batch) * 2**15 < 2**27
