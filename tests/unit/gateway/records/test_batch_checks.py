"""What the checks of a produce request cost."""

from types import SimpleNamespace

import pyarrow as pa
import pytest

from spark_log.config import TopicConfig
from spark_log.errors import InvalidRecordError
from spark_log.gateway.records import batch_checks
from spark_log.gateway.records.batch_checks import SentBatch, decoded_bytes_max
from spark_log.log.records.kafka_batch.decode import DecodedBatch, DecodingLimits
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


@pytest.mark.parametrize("error", [InvalidRecordError("no key"), RuntimeError("unexpected")])
def test_a_refused_batch_holds_its_records_once_if_there_are_reasons_to_find(monkeypatch, error):
    def accepted(*_):
        raise error

    monkeypatch.setattr(batch_checks, "_accepted", accepted)
    decoded = DecodedBatch(None, pa.table({"v": range(1_000)}))
    outcome = batch_checks._check(SentBatch("t", 0, b""), decoded, None, 0, None)
    assert outcome.error is error
    assert error.__traceback__ is None, "its frames have the records"
    assert outcome.bytes == (8_000 if isinstance(error, InvalidRecordError) else 0)


def test_a_small_zstd_batch_is_not_taken_for_all_of_the_memory():
    """A zstd block of four bytes may become 128 KiB (RFC 8878)."""
    batch = batch_of(bytes(500), 1, 4)
    limits = DecodingLimits(decompressed_bytes_max=2**27)
    assert decoded_bytes_max([SentBatch("t", 0, batch)], limits) == len(batch) * 2**15 < 2**27
