"""Masks of events of Debezium: a field of the row is hidden in each of its places."""

import json

import pytest

from spark_log.console.masks import HIDDEN, masks_of

ROW = {"id": 1, "ssn": "123-45"}
EVENT = {"op": "u", "before": ROW, "after": ROW, "source": {"lsn": 7}}


@pytest.mark.parametrize(
    "mask",
    ["record.ssn", "value.after.ssn", "value.before.SSN", "value.payload.after.ssn", "value.payload.before.ssn__v2"],
)
def test_a_mask_of_one_place_hides_the_field_in_all(mask):
    masks = masks_of(frozenset([mask]), envelope=True)
    for event in (EVENT, {"schema": {}, "payload": EVENT}):
        shown = masks.json_text("value", json.dumps(event).encode())
        assert shown is not None and b"123-45" not in shown
        assert json.loads(shown).get("payload", json.loads(shown))["after"] == {"id": 1, "ssn": HIDDEN}
    assert masks.record("value", {**ROW, "__op": "u"}) == {"id": 1, "ssn": HIDDEN, "__op": "u"}
    for path in [("record", "ssn"), ("record",), ("value", "after", "ssn"), ("value", "before"), ("value",)]:
        assert masks.hides(path), path
    assert not masks.hides(("record", "id"))
    assert not masks.hides(("value", "source", "lsn"))


@pytest.mark.parametrize("mask", ["value.after", "value.payload", "record"])
def test_a_mask_of_the_whole_row_hides_all_columns(mask):
    masks = masks_of(frozenset([mask]), envelope=True)
    assert masks.record("value", ROW) == HIDDEN
    assert masks.hides(("record", "id"))


def test_a_topic_without_an_envelope_may_have_such_events_but_a_field_after_is_not_its_row():
    masks = masks_of(frozenset(["value.ssn", "value.after"]))
    for path in [("value", "payload", "before", "ssn"), ("record", "after"), ("value",)]:
        assert masks.hides(path), path
    assert not masks.hides(("record", "id"))
    assert masks_of(frozenset(["value"])).hides(("record", "id"))
