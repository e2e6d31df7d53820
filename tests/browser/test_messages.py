"""Messages in chromium: a live tail, a search that continues, hostile values, a download, and produce."""

import json

import pytest

from spark_log import Producer
from spark_log.console.paths import url
from spark_log.log.log import Records
from spark_log.maintenance.client_log import ClientLog
from spark_log.replication.controller.topic_operations import create_topic
from tests.support.console import MARKUP, TOPIC, VALUES
from tests.support.records import table

pytestmark = pytest.mark.xdist_group("browser")  # one browser and one cluster

ROWS = "main tbody tr"


def appended(console, topic, *values):
    log = ClientLog(console.cluster)
    try:
        log.append(log.find_topic(topic), [Records(0, table(*values))])
    finally:
        log.close()


@pytest.mark.slow
def test_a_live_tail_shows_what_is_appended(visit, hostile):
    create_topic(hostile.cluster, "live", 1, 1)
    assert visit.page.goto(f"{visit.url}/topics/live/messages").status == 200
    visit.page.get_by_role("link", name="Live tail").click()
    visit.page.get_by_text("No messages.").wait_for()
    for value in ("first", MARKUP):
        appended(hostile, "live", value)
        visit.page.locator(f"{ROWS} >> text={json.dumps(value)}").wait_for(timeout=10_000)
    assert visit.page.locator(ROWS).count() == 2
    assert visit.axe_violations() == []
    visit.page.get_by_role("link", name="Stop the live tail").click()
    visit.page.get_by_text("All offsets have been searched").wait_for()


def test_on_a_phone_key_and_value_have_the_whole_width(visit, hostile):
    create_topic(hostile.cluster, "phone", 1, 1)
    order = {"order": 123456, "customer": "Ann Example", "lines": [{"sku": f"A-{n}", "n": n} for n in range(12)]}
    with Producer(cluster=str(hostile.cluster.store.address)) as producer:
        for value in (json.dumps(order).encode(), b"\n".join([b"line"] * 60)):
            producer.send("phone", value, b"customer-42", headers=[("trace", b"0af7651916cd43dd8448eb211c80319c")])
    visit.page.set_viewport_size({"width": 390, "height": 844})
    visit.open("/topics/phone/messages")
    rows = visit.page.locator("[aria-label=Messages] tbody tr").all()
    assert len(rows) == 2
    for row in rows:
        assert row.bounding_box()["height"] < 280, "of 844 px"
        assert row.locator("td").nth(4).bounding_box()["width"] > 350
    assert not visit.is_wider_than_the_window() and visit.axe_violations() == []


def test_a_search_is_continued_and_its_errors_are_shown(visit, hostile):
    create_topic(hostile.cluster, "search", 1, 1)
    appended(hostile, "search", *(json.dumps({"n": n}) for n in range(300)))
    visit.open("/topics/search/messages")
    visit.page.get_by_label("From").select_option("earliest")
    visit.page.get_by_label("Filter").fill("value.n >= 100 AND NOT value.n = 102")
    visit.page.get_by_label("Show").fill("3")
    visit.page.get_by_role("button", name="Search").click()
    offsets = []
    for _ in range(2):
        visit.page.get_by_text("3 messages of").wait_for()
        offsets += visit.page.locator(f"{ROWS} a").all_inner_texts()
        visit.page.get_by_role("link", name="Continue").click()
    assert offsets == ["100", "101", "103", "104", "105", "106"]
    visit.expected_statuses.add(400)
    assert visit.open(url("/topics/search/messages", {"filter": "value.n >< 1"})) == 400
    assert "at character" in visit.page.inner_text("main")


@pytest.mark.slow
def test_hostile_values_are_shown_and_downloaded(visit):
    for offset, value in enumerate(VALUES):
        path = f"/topics/{TOPIC}/messages/0/{offset}"
        assert visit.open(path) == 200
        shown = visit.page.locator("main pre").all_text_contents()
        if value:
            assert any(value.hex(" ")[:60] in text for text in shown)
            with visit.page.expect_download() as download:
                visit.page.get_by_role("link", name="Download the value").click()
            assert download.value.path().read_bytes() == value
    visit.open(f"/topics/{TOPIC}/messages?partition=1")
    assert "No messages." in visit.page.inner_text("main"), "the record there is of an open transaction"
    visit.open(f"/topics/{TOPIC}/messages")
    with visit.page.expect_download() as download:
        visit.page.get_by_role("link", name="Download NDJSON").click()
    rows = [json.loads(line) for line in download.value.path().read_bytes().splitlines()]
    assert len(rows) == len(VALUES) and MARKUP in {row["value"] for row in rows}


def test_a_message_is_copied_into_produce_and_appended(visit, hostile):
    create_topic(hostile.cluster, "produce", 1, 1)
    value = f"\nline\n{MARKUP}\ttab"
    appended(hostile, "produce", value)
    visit.open("/topics/produce/messages/0/0")
    visit.page.get_by_role("link", name="Copy into Produce").click()
    visit.page.get_by_label("Headers").fill("a: 1")
    visit.page.get_by_role("button", name="Append").click()
    visit.page.get_by_text("Appended to partition 0 at offset 1.").wait_for()
    assert visit.page.locator("main pre").first.text_content() == value
    answer = visit.page.request.get(f"{visit.url}/topics/produce/messages/0/1/value")
    assert answer.body() == value.encode()
