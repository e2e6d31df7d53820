"""Changes in chromium: a reset of offsets and a config, each with its preview; a topic that is created and deleted."""

import pytest

from spark_log.cluster.topics import find_topic
from spark_log.console.paths import url
from spark_log.groups.committed_offsets import commit_offsets, committed_offsets
from spark_log.groups.share.administration import alter_group_configs, group_overrides
from spark_log.ids import TopicPartition
from spark_log.maintenance.client_log import ClientLog
from spark_log.replication.controller.topic_operations import create_topic
from tests.support.console import MARKUP
from tests.support.share_members import ShareMember
from tests.support.topics import all_stored, append, fill

pytestmark = pytest.mark.xdist_group("browser")  # one browser and one cluster

STATUS = "[role=status]"
LETTER = [("__dlq.errors.topic", b"shared"), ("__dlq.errors.partition", b"0"), ("__dlq.errors.offset", b"0")]


@pytest.mark.slow
def test_offsets_are_reset_to_what_the_preview_shows(visit, hostile):
    topic, group = create_topic(hostile.cluster, "reset", 2, 1), f"{MARKUP}/reset"
    log = ClientLog(hostile.cluster)
    fill(log, topic, [5, 3])
    log.close()
    commit_offsets(hostile.cluster.store, group, {TopicPartition("reset", 0): 4, TopicPartition("reset", 1): 1})
    visit.open(url("/groups/{group}", group=group))
    visit.page.get_by_role("button", name="Reset offsets").click()
    visit.page.locator("select[name=to]").select_option("shift")
    visit.page.get_by_label("Value").fill("-2")
    visit.page.get_by_role("button", name="Preview").click()
    assert "3 records will be read again" in visit.page.inner_text("main")
    assert visit.page.locator("tbody tr").nth(0).inner_text().split() == ["reset-0", "4", "2", "2"]
    assert visit.axe_violations() == []
    visit.page.get_by_role("button", name="Commit these offsets").click()
    visit.page.wait_for_url(f"{visit.url}{url('/groups/{group}', group=group)}")
    assert "Committed 2 offsets" in visit.page.inner_text(STATUS)
    assert committed_offsets(hostile.cluster.store, group) == {("reset", 0): 2, ("reset", 1): 0}


def test_a_share_group_is_shown_its_config_is_set_and_its_letter_copied_back(visit, hostile):
    log, group = ClientLog(hostile.cluster), f"{MARKUP}/workers"
    fill(log, create_topic(hostile.cluster, "shared", 1, 1), [5])
    append(log, create_topic(hostile.cluster, "dlq.shared", 1, 1), MARKUP, headers=LETTER)
    log.close()
    configs = {"share.auto.offset.reset": "earliest", "errors.deadletterqueue.topic.name": "dlq.shared"}
    alter_group_configs(hostile.cluster.store, group, configs)
    ShareMember(hostile.cluster, ["shared"], group).poll(2)
    visit.open(url("/groups/{group}", group=group))
    assert visit.page.locator("main table").nth(1).locator("tbody tr").inner_text().split() == [
        "shared-0", "0", "2", "5", "5", "2", "0", "0", "0",
    ]  # fmt: skip
    assert visit.axe_violations() == []
    assert not visit.is_wider_than_the_window()
    visit.page.locator("select[name=config]").select_option("share.delivery.count.limit")
    visit.page.get_by_label("New value").fill("3")
    visit.page.get_by_role("button", name="Set", exact=True).click()
    assert "share.delivery.count.limit of group" in visit.page.inner_text(STATUS)
    assert group_overrides(hostile.cluster.store, group)["share.delivery.count.limit"] == "3"
    visit.page.get_by_role("link", name="Redrive dead letters of dlq.shared").click()
    visit.page.get_by_role("button", name="Preview").click()
    assert visit.page.locator("tbody tr").inner_text().split() == ["shared", "1"]
    assert visit.axe_violations() == []
    assert not visit.is_wider_than_the_window()
    visit.page.get_by_role("button", name="Redrive these letters").click()
    assert "Copied 1 letter of topic dlq.shared." in visit.page.inner_text(STATUS)
    assert all_stored(hostile.cluster, "shared").count(MARKUP) == 1


@pytest.mark.slow
def test_a_config_is_changed_after_its_preview(visit, hostile):
    create_topic(hostile.cluster, "configs", 1, 1)
    visit.open("/topics/configs")
    visit.page.get_by_role("link", name="retention.ms", exact=True).click()
    visit.page.get_by_label("New value").fill("never")
    visit.page.get_by_role("button", name="Preview").click()
    assert "This would be refused" in visit.page.inner_text("[role=alert]")
    visit.page.get_by_label("New value").fill("3600000")
    visit.page.get_by_role("button", name="Preview").click()
    assert "604800000 → 3600000" in visit.page.inner_text("main")
    assert visit.axe_violations() == []
    visit.page.get_by_role("button", name="Apply").click()
    assert "retention.ms of topic configs is 3600000 now." in visit.page.inner_text(STATUS)
    visit.page.get_by_role("link", name="retention.ms", exact=True).click()
    visit.page.get_by_role("button", name="Preview a reset to the default").click()
    visit.page.get_by_role("button", name="Apply").click()
    assert "(the default)" in visit.page.inner_text(STATUS)
    assert hostile.cluster.store.read(lambda connection: find_topic(connection, "configs")).overrides == {}


@pytest.mark.slow
def test_a_topic_is_created_made_a_favourite_sorted_and_deleted(visit, hostile):
    visit.open("/topics")
    visit.page.get_by_label("Name", exact=True).last.fill("zz-new")
    visit.page.get_by_role("button", name="Create").click()
    visit.page.wait_for_url("**/topics/zz-new")
    visit.page.get_by_role("button", name="add to favourites").click()
    visit.open("/topics")
    assert visit.page.locator("tbody tr").first.inner_text().split()[1] == "zz-new"
    visit.page.get_by_role("link", name="Partitions").click()
    assert visit.page.locator("th[aria-sort]").inner_text().startswith("Partitions")
    visit.page.get_by_role("link", name="zz-new").click()
    visit.page.get_by_label("The topic's name").fill("zz-new")
    visit.page.get_by_role("button", name="Delete the topic").click()
    visit.page.wait_for_url("**/topics")
    assert "Deleted topic zz-new." in visit.page.inner_text(STATUS)
