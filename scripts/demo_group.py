"""A consumer group at work: two consumers share a topic, one is killed, the other takes over, the lag goes to zero.

    python scripts/demo_group.py --cluster ADDRESS [--topic flights] [--help]

`make demo` runs it after the flights are in their topic. Each consumer is a process of its own with a plain poll loop:
it adds up the departure delays of what it reads, commits after each poll, and says so. When a third of the topic is
processed, the first one gets SIGKILL. At the end every record has been processed at least once; what was repeated is
what the killed one had read and not committed. Exit code 1 if a record was skipped.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from kafka.admin import OffsetSpec
from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from spark_log import Admin, Consumer
from spark_log.errors import SparkLogError
from spark_log.ids import TopicPartition

console = Console(highlight=False, width=None if sys.stdout.isatty() else 110)
NAMES = ("first", "second")
GIVE_UP_S = 120


def main() -> int:
    arguments = _arguments()
    if arguments.member:
        return consume(arguments)
    group = f"demo-{os.getpid()}"
    with Admin(cluster=arguments.cluster) as admin:
        ends = _ends(admin, arguments.topic)
        console.print(f"  group {group} on topic {arguments.topic}: {sum(ends.values()):,} records")
        members = [Member(name, group, arguments) for name in NAMES]
        try:
            failure = watch(admin, group, ends, members)
        finally:
            for member in members:
                member.end()
    failure = failure or skipped(ends, members)
    if failure:
        console.print(f"[bold red]group:[/bold red] {failure}")
        return 1
    processed = sum(member.records for member in members)
    delays = sum(member.delays for member in members)
    console.print(
        f"  all {sum(ends.values()):,} records were processed, none was skipped;"
        f" {processed - sum(ends.values()):,} twice (read by the killed one, not committed)"
    )
    console.print(f"  {delays:,} delayed departures among what was processed")
    return 0


def consume(arguments: argparse.Namespace) -> int:
    """A member: the loop that a user would write. One JSON line for each partition of each poll, before the commit."""
    consumer = Consumer(
        arguments.topic,
        cluster=arguments.cluster,
        group_id=arguments.group,
        client_id=arguments.member,
        value_deserializer=json.loads,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=3_000,
        heartbeat_interval_ms=500,
        max_poll_records=2_000,
    )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        while True:
            polled = consumer.poll(timeout_ms=500)
            for partition, records in polled.items():
                delayed = sum(1 for record in records if (record.value.get("dep_delay") or 0) > 0)
                offsets = [record.offset for record in records]
                print(json.dumps([partition.partition, offsets[0], offsets[-1] + 1, len(offsets), delayed]), flush=True)
            if polled:
                consumer.commit()
    finally:
        consumer.close()


class Member:
    """A consumer process, and what it said it has processed."""

    def __init__(self, name: str, group: str, arguments: argparse.Namespace) -> None:
        self.name = name
        self.ranges: list[tuple[int, int, int]] = []
        self.records = 0
        self.delays = 0
        command = [sys.executable, __file__, "--cluster", arguments.cluster, "--topic", arguments.topic]
        self._process = subprocess.Popen(
            [*command, "--group", group, "--member", name], stdout=subprocess.PIPE, text=True, env=os.environ
        )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            partition, start, end, records, delays = json.loads(line)
            self.ranges.append((partition, start, end))
            self.records += records
            self.delays += delays

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)

    def end(self) -> None:
        if self.alive:
            self._process.terminate()
        self._process.wait(timeout=30)
        self._listener.join(timeout=30)


def watch(admin: Admin, group: str, ends: Mapping[int, int], members: list[Member]) -> str:
    """Shows the group until its lag is zero; kills the first member on the way. A reason why it went wrong, or ''."""
    victim = members[0]
    deadline = time.monotonic() + GIVE_UP_S
    killed = False
    with Live(console=console, refresh_per_second=8, transient=not console.is_terminal) as live:
        for owners, committed in _states(admin, group, ends):
            lag = {partition: end - committed.get(partition, 0) for partition, end in ends.items()}
            live.update(_table(group, ends, committed, owners))
            shared = set(owners.values()) == set(NAMES)
            if not killed and shared and sum(lag.values()) < sum(ends.values()) * 2 // 3:
                victim.kill()
                killed = True
                console.print(f"  SIGKILL to the {victim.name} consumer, lag {sum(lag.values()):,}")
            if killed and not any(lag.values()) and set(owners.values()) == {NAMES[1]}:
                console.print(f"  the {NAMES[1]} consumer has all partitions, lag 0")
                return ""
            if not killed and not any(lag.values()):
                return "the lag was zero before both consumers had partitions: nothing to show"
            if not members[1].alive:
                return f"the {NAMES[1]} consumer ended by itself"
            if time.monotonic() > deadline:
                return f"the lag is still {sum(lag.values()):,} after {GIVE_UP_S} s"
    return ""


def _states(admin: Admin, group: str, ends: Mapping[int, int]) -> Iterator[tuple[dict[int, str], dict[int, int]]]:
    """Owner and committed offset of each partition, again and again."""
    while True:
        described = admin.describe_groups([group])[group]
        owners = {
            partition: member["client_id"]
            for member in described["members"]
            for entry in member["member_assignment"]["assigned_partitions"]
            for partition in entry["partitions"]
        }
        offsets = admin.list_group_offsets(group)[group]
        yield owners, {tp.partition: committed.offset for tp, committed in offsets.items() if tp.partition in ends}
        time.sleep(0.1)


def _table(group: str, ends: Mapping[int, int], committed: Mapping[int, int], owners: Mapping[int, str]) -> Table:
    table = Table(title=f"group {group}", title_justify="left")
    for column in ("partition", "consumer", "committed", "lag", ""):
        table.add_column(column, justify="right" if column in ("partition", "committed", "lag") else "left")
    for partition, end in sorted(ends.items()):
        done = committed.get(partition, 0)
        bar = ProgressBar(total=max(end, 1), completed=done, width=30)
        table.add_row(str(partition), owners.get(partition, "-"), f"{done:,}", f"{end - done:,}", bar)
    return table


def skipped(ends: Mapping[int, int], members: list[Member]) -> str:
    """'' if every offset of every partition is in what the members said, else which are not."""
    for partition, end in ends.items():
        position = 0
        for start, stop in sorted(
            (start, stop) for m in members for number, start, stop in m.ranges if number == partition
        ):
            if start > position:
                break
            position = max(position, stop)
        if position < end:
            return f"partition {partition}: offset {position} was not processed"
    return ""


def _ends(admin: Admin, topic: str) -> dict[int, int]:
    [described] = admin.describe_topics([topic])
    partitions = [TopicPartition(topic, partition["partition_index"]) for partition in described["partitions"]]
    found = admin.list_partition_offsets(dict.fromkeys(partitions, OffsetSpec.LATEST))
    return {partition.partition: where.offset for partition, where in found.items()}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = os.environ.get("SPARK_LOG_CLUSTER") or str(Path(".demo").absolute() / "cluster")
    parser.add_argument("--cluster", default=default, help="folder or URL [env SPARK_LOG_CLUSTER; .demo/cluster]")
    parser.add_argument("--topic", default="flights")
    parser.add_argument("--group", help=argparse.SUPPRESS)
    parser.add_argument("--member", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SparkLogError as error:
        console.print(f"[bold red]group:[/bold red] {error}")
        sys.exit(1)
