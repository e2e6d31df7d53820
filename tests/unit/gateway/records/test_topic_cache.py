"""The topics that a gateway keeps."""

from types import SimpleNamespace
from uuid import UUID

import pytest

from spark_log.gateway.records import topic_cache
from spark_log.gateway.records.topic_cache import TopicCache


@pytest.fixture
def time(monkeypatch):
    """The clock: `now_s` is the time."""
    time = SimpleNamespace(now_s=1_000.0)
    monkeypatch.setattr(topic_cache, "clock", SimpleNamespace(monotonic_s=lambda: time.now_s))
    return time


def test_topics_that_are_not_used_any_more_are_dropped(time, monkeypatch):
    def by_uuid(_, ids):
        return {each: SimpleNamespace(name=f"name of {each}") for each in ids}

    monkeypatch.setattr(
        topic_cache, "find_topics", lambda _, names: {name: SimpleNamespace(name=name) for name in names}
    )
    monkeypatch.setattr(topic_cache, "topics_of_uuids", by_uuid)
    cache = TopicCache(SimpleNamespace(store=SimpleNamespace(read=lambda work: work(None))))
    for number in range(100):
        time.now_s += 0.3
        assert cache.find([f"job-{number}"]).keys() == {f"job-{number}"}
        assert cache.names([UUID(int=number)]) == {UUID(int=number): f"name of {UUID(int=number).hex}"}
        assert len(cache._found) < 10 and len(cache._names) < 10
    time.now_s += 0.3
    monkeypatch.setattr(topic_cache, "find_topics", None)
    assert cache.find(["job-99"]).keys() == {"job-99"}, "it is still fresh"
