"""Served brokers in separate processes, which tests kill, stop and restart."""

from pathlib import Path

from tests.support.logged_process import LoggedProcess

QUICK = {
    "broker.session.timeout.ms": 3_000,  # with 1 s, three brokers on two busy cores lose their leases all the time
    "controller.lease.ms": 3_000,
    "replica.lag.time.max.ms": 5_000,
    "leader.imbalance.check.interval.ms": 1_000,
}


class BrokerProcess(LoggedProcess):
    """`spark-log broker start`; its output goes to `<folder>/broker-<id>.log`."""

    def __init__(self, folder: Path, address: str, broker_id: int, settings: dict[str, int] = QUICK) -> None:
        self.broker_id = broker_id
        options = [part for name, value in settings.items() for part in ("--setting", f"{name}={value}")]
        log = folder / f"broker-{broker_id}.log"
        super().__init__(log, "broker", "start", "--id", str(broker_id), "--cluster", address, *options)
