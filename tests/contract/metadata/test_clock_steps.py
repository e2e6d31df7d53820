"""A wall clock that jumps by days: nothing is deleted because of its age."""

import pytest
import sqlalchemy as sa

from spark_log import clock
from spark_log.cluster.brokers import BrokerSession, alive_log_dirs
from spark_log.cluster.lease import COORDINATOR, Lease, lease_status
from spark_log.cluster.settings import alter_settings
from spark_log.config.values import LEASE_MS_MAX
from spark_log.errors import InvalidConfigurationError, InvalidRecordStateError, NotCoordinatorError
from spark_log.groups.share.administration import alter_group_configs
from spark_log.groups.share.looks import look, next_change_ms
from spark_log.groups.share.rules import AcknowledgeType
from spark_log.groups.share.service import end_idle_locks
from spark_log.log.append.producer_rows import register_producer
from spark_log.maintenance import run_tasks
from spark_log.maintenance.coordinator.lease_runner import LeaseRunner
from spark_log.metadata import tables as t
from spark_log.metadata.store_schema import write_overrides
from tests.support.share_members import ShareMember
from tests.support.stores import change
from tests.support.topics import fill, make

MONTH_MS = 30 * 86_400_000


def time_left_ms(cluster):
    """Return the time until the next change of group `workers`."""
    seen = look(cluster.store, "workers")
    return next_change_ms(seen, seen.offers)


def test_a_clock_step_deletes_nothing_by_age(cluster, monkeypatch):
    store = cluster.store
    assert store.clock_is_steady()
    producer_ids = [register_producer(store, 10_000) for _ in range(2)]  # the last one is never deleted
    if store.sqlite:
        wall_ms = clock.wall_ms
        monkeypatch.setattr(clock, "wall_ms", lambda: wall_ms() + MONTH_MS)
    else:  # the server's clock cannot be set here: the host's boot clock falls behind it instead
        boot_ms = clock.boot_ms
        monkeypatch.setattr(clock, "boot_ms", lambda: boot_ms() - MONTH_MS)
        change(cluster, t.producer.update().values(last_used_ms=t.producer.c.last_used_ms - MONTH_MS))
    tasks = ["files", "expire"]
    for task, report in zip(tasks, run_tasks(cluster, tasks), strict=True):
        assert report.task == task and "clock" in str(report)
    known = sa.select(t.producer.c.producer_id)
    assert store.read(lambda connection: connection.execute(known).scalars().all()) == producer_ids
    monkeypatch.undo()
    if store.sqlite:
        assert list(run_tasks(cluster, tasks)) == [], "set back: all is as it was"


@pytest.fixture
def members(cluster, log):
    """Two members of a share group, and the records that the first one has acquired."""
    make(cluster, "t")
    alter_group_configs(cluster.store, "workers", {"share.auto.offset.reset": "earliest"})
    fill(log, "t", [5])
    first, second = ShareMember(cluster, member="m1"), ShareMember(cluster, member="m2")
    return first, second, first.poll()


@pytest.mark.parametrize("step_ms", [MONTH_MS, -MONTH_MS])
def test_a_step_of_the_wall_clock_ends_no_lock_of_a_share_group_and_extends_none(
    cluster, members, monkeypatch, step_ms
):
    first, second, acquired = members
    before_ms = time_left_ms(cluster)
    wall_ms = clock.wall_ms
    monkeypatch.setattr(clock, "wall_ms", lambda: wall_ms() + step_ms)
    assert second.poll() == {}
    assert before_ms - 20_000 < time_left_ms(cluster) <= before_ms
    assert set(first.acknowledge(acquired, AcknowledgeType.RENEW).errors.values()) == {None}
    assert time_left_ms(cluster) <= 30_000
    assert second.poll() == {}
    assert set(first.acknowledge(acquired, AcknowledgeType.ACCEPT).errors.values()) == {None}


@pytest.mark.on_sqlite
def test_a_reboot_of_the_host_ends_all_locks_of_share_groups(cluster, members, monkeypatch):
    """The boot clock begins at 0 again: the locks' times would be far in the future."""
    first, second, acquired = members
    boot_ms = clock.boot_ms()
    monkeypatch.setattr(clock, "boot_id", lambda: "another boot")
    real_ms = clock.boot_ms
    monkeypatch.setattr(clock, "boot_ms", lambda: real_ms() - boot_ms + 1)
    [error] = first.acknowledge(acquired, AcknowledgeType.ACCEPT).errors.values()
    assert isinstance(error, InvalidRecordStateError)
    [again] = second.poll().values()
    assert [(r.first, r.end, r.deliveries) for r in again] == [(0, 5, 2)]
    assert time_left_ms(cluster) <= 30_000


@pytest.mark.on_sqlite
@pytest.mark.parametrize("finder", ["poll", "coordinator"])
def test_the_first_look_after_a_reboot_finds_the_records(cluster, members, monkeypatch, finder):
    _, second, _ = members
    monkeypatch.setattr(clock, "boot_id", lambda: "another boot")
    monkeypatch.setattr(clock, "boot_ms", lambda: 1_000)
    if finder == "coordinator":
        assert end_idle_locks(cluster.store) == 1
        [offer] = look(cluster.store, "workers").offers.values()
        assert (offer.available, offer.wake_ms) == (5, None)
    [again] = second.poll().values()
    assert [(r.first, r.end, r.deliveries) for r in again] == [(0, 5, 2)]


@pytest.mark.parametrize("ahead_ms", [LEASE_MS_MAX, MONTH_MS])
def test_a_clock_that_is_set_back_lets_the_lease_of_a_dead_process_end(cluster, ahead_ms):
    """The lease was renewed while the clock was ahead, so that it ends as much later."""
    dead, other = (Lease(cluster.store, COORDINATOR, 9_000) for _ in range(2))
    assert dead.take_or_renew() and not other.take_or_renew()
    change(cluster, t.lease.update().values(until_ms=t.lease.c.until_ms + ahead_ms))
    assert lease_status(cluster.store, COORDINATOR).left_ms == 0
    assert other.take_or_renew()
    with pytest.raises(NotCoordinatorError):
        cluster.store.transact(dead.check)
    assert lease_status(cluster.store, COORDINATOR).left_ms > 0


def test_a_clock_that_is_set_back_lets_a_dead_broker_be_served_again(cluster):
    dead, other = (BrokerSession(cluster.store, 1, 9_000) for _ in range(2))
    dead.register()
    change(cluster, t.broker.update().values(lease_until_ms=t.broker.c.lease_until_ms + MONTH_MS))
    assert cluster.store.read(lambda c: alive_log_dirs(c, cluster.store.clock(c))) == frozenset()
    assert not dead.renew()
    other.register()
    assert cluster.store.read(lambda c: alive_log_dirs(c, cluster.store.clock(c))) == {1}


def test_a_lease_with_a_long_setting_is_kept(cluster):
    holder, other = (Lease(cluster.store, COORDINATOR, LEASE_MS_MAX) for _ in range(2))
    assert holder.take_or_renew() and not other.take_or_renew()


def test_a_lease_is_renewed_in_time_with_a_setting_of_an_earlier_release_that_is_too_long(cluster):
    with pytest.raises(InvalidConfigurationError, match="from 1 to 600000"):
        alter_settings(cluster, {"broker.session.timeout.ms": "600001"})
    stored = {"controller.lease.ms": "3600000", "broker.session.timeout.ms": "3600000"}
    cluster.store.transact(lambda connection: write_overrides(connection, stored))
    cluster.store.forget_settings()
    assert cluster.store.settings.broker_session_timeout_ms == LEASE_MS_MAX
    runner = LeaseRunner(cluster, COORDINATOR, None, ())
    assert runner._renew_lease() * 1000 < lease_status(cluster.store, COORDINATOR).left_ms / 2
