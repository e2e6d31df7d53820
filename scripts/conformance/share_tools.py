"""Kafka's tools for share groups: the output of each command, on a broker and on a gateway.

`python -m scripts.conformance.share_tools [--server broker|gateway|both]` prints them; with both, those that differ.
"""

import argparse
import json
import re
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import confluent_kafka as rd

from scripts.conformance.kafka_tools import CONFIGS, PRODUCER, TOPICS, Step, compared, results_of, run
from scripts.conformance.results import Result
from scripts.conformance.share_groups import broker_for_shares, gateway_for_shares

_SHARES = "org.apache.kafka.tools.consumer.group.ShareGroupCommand"
_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleShareConsumer"
_GROUPS = "org.apache.kafka.tools.GroupsCommand"
_VERIFIABLE = "org.apache.kafka.tools.VerifiableShareConsumer"
_OF_GROUP = "--entity-type groups --entity-name workers"
_RESET = "--reset-offsets --group workers"
_PRINT = "--formatter-property print.offset=true --formatter-property print.delivery=true --timeout-ms 8000"

STEPS = (
    Step("kafka-topics --create", TOPICS, "--create --topic jobs --partitions 2"),
    Step("kafka-topics --create, second", TOPICS, "--create --topic more --partitions 1"),
    Step("kafka-console-producer", PRODUCER,
         "--topic jobs --reader-property parse.key=true --reader-property key.separator=:",
         "a:1\na:2\na:3\na:4\na:5\n"),
    Step("kafka-console-producer, second", PRODUCER, "--topic more", "x\ny\n"),
    Step("kafka-configs --alter, group", CONFIGS,
         f"--alter {_OF_GROUP} --add-config share.auto.offset.reset=earliest"),
    Step("kafka-configs --describe, group", CONFIGS, f"--describe {_OF_GROUP}"),
    Step("kafka-configs --describe --all, group", CONFIGS, f"--describe --all {_OF_GROUP}"),
    Step("kafka-configs --describe, all groups", CONFIGS, "--describe --entity-type groups"),
    Step("kafka-configs --alter, unknown config", CONFIGS, f"--alter {_OF_GROUP} --add-config share.unknown=1"),
    Step("kafka-configs --alter, beyond the limit", CONFIGS,
         f"--alter {_OF_GROUP} --add-config share.record.lock.duration.ms=60001"),
    Step("kafka-configs --alter, below the limit", CONFIGS,
         f"--alter {_OF_GROUP} --add-config share.delivery.count.limit=1"),
    Step("kafka-configs --alter, not a number", CONFIGS,
         f"--alter {_OF_GROUP} --add-config share.delivery.count.limit=a"),
    Step("kafka-share-groups --list, none", _SHARES, "--list"),
    Step("kafka-console-share-consumer, accepts", _CONSUMER, f"--topic jobs --group workers --max-messages 5 {_PRINT}"),
    Step("kafka-share-groups --list", _SHARES, "--list"),
    Step("kafka-share-groups --list --state", _SHARES, "--list --state"),
    Step("kafka-share-groups --list --state Stable", _SHARES, "--list --state Stable"),
    Step("kafka-share-groups --describe", _SHARES, "--describe --group workers"),
    Step("kafka-share-groups --describe --offsets --verbose", _SHARES,
         "--describe --group workers --offsets --verbose"),
    Step("kafka-share-groups --describe --state", _SHARES, "--describe --group workers --state"),
    Step("kafka-share-groups --describe --state --verbose", _SHARES, "--describe --group workers --state --verbose"),
    Step("kafka-share-groups --describe --members", _SHARES, "--describe --group workers --members"),
    Step("kafka-share-groups --describe --members --verbose", _SHARES,
         "--describe --group workers --members --verbose"),
    Step("kafka-share-groups --describe, missing", _SHARES, "--describe --group missing"),
    Step("kafka-share-groups --describe --all-groups", _SHARES, "--describe --all-groups"),
    Step("kafka-groups --list", _GROUPS, "--list"),
    Step("kafka-groups --list --share", _GROUPS, "--list --share"),
    Step("kafka-groups --list --group-type share", _GROUPS, "--list --group-type share"),
    Step("--reset-offsets --to-earliest --dry-run", _SHARES, f"{_RESET} --topic jobs --to-earliest --dry-run"),
    Step("--reset-offsets --to-earliest --export", _SHARES, f"{_RESET} --topic jobs --to-earliest --dry-run --export"),
    Step("--reset-offsets without --execute", _SHARES, f"{_RESET} --topic jobs --to-earliest"),
    Step("--reset-offsets --to-offset", _SHARES, f"{_RESET} --topic jobs:0 --to-offset 1 --execute"),
    Step("--describe after --to-offset", _SHARES, "--describe --group workers"),
    Step("--reset-offsets --to-offset, beyond the end", _SHARES, f"{_RESET} --topic jobs:0 --to-offset 99 --execute"),
    Step("--reset-offsets --to-current", _SHARES, f"{_RESET} --topic jobs --to-current --execute"),
    Step("--reset-offsets --to-latest", _SHARES, f"{_RESET} --all-topics --to-latest --execute"),
    Step("--reset-offsets --to-datetime", _SHARES,
         f"{_RESET} --topic jobs --to-datetime 2020-01-01T00:00:00.000 --execute"),
    Step("--reset-offsets --from-file", _SHARES, f"{_RESET} --from-file FOLDER/offsets.csv --execute"),
    Step("--reset-offsets, another topic", _SHARES, f"{_RESET} --topic more --to-earliest --execute"),
    Step("--reset-offsets, a new group", _SHARES,
         "--reset-offsets --group fresh --topic more --to-earliest --execute"),
    Step("--reset-offsets, missing topic", _SHARES, f"{_RESET} --topic absent --to-earliest --execute"),
    Step("--describe after resets", _SHARES, "--describe --all-groups --offsets"),
    Step("kafka-console-share-consumer, releases", _CONSUMER,
         f"--topic more --group fresh --release --max-messages 1 {_PRINT}"),
    Step("kafka-console-share-consumer, rejects", _CONSUMER,
         f"--topic more --group fresh --reject --max-messages 2 {_PRINT}"),
    Step("kafka-verifiable-share-consumer", _VERIFIABLE,
         "--topic more --group-id verified --max-messages 2 --verbose --acknowledgement-mode sync"
         " --offset-reset-strategy earliest"),
    Step("--delete-offsets", _SHARES, "--delete-offsets --group workers --topic more"),
    Step("--delete-offsets, missing topic", _SHARES, "--delete-offsets --group workers --topic absent"),
    Step("--delete", _SHARES, "--delete --group workers --group fresh"),
    Step("--delete, missing", _SHARES, "--delete --group missing"),
    Step("--delete --all-groups", _SHARES, "--delete --all-groups"),
    Step("kafka-share-groups --list, at the end", _SHARES, "--list"),
    Step("kafka-configs --alter --delete-config", CONFIGS,
         f"--alter {_OF_GROUP} --delete-config share.auto.offset.reset"),
    Step("kafka-configs --describe, at the end", CONFIGS, f"--describe {_OF_GROUP}"),
)  # fmt: skip

MEMBER_STEPS = (
    Step("--describe with a member", _SHARES, "--describe --group busy"),
    Step("--describe --state with a member", _SHARES, "--describe --group busy --state"),
    Step("--describe --state --verbose with a member", _SHARES, "--describe --group busy --state --verbose"),
    Step("--describe --members with a member", _SHARES, "--describe --group busy --members"),
    Step("--describe --members --verbose with a member", _SHARES, "--describe --group busy --members --verbose"),
    Step("--list --state with a member", _SHARES, "--list --state"),
    Step("--reset-offsets with a member", _SHARES, "--reset-offsets --group busy --topic jobs --to-earliest --execute"),
    Step("--delete-offsets with a member", _SHARES, "--delete-offsets --group busy --topic jobs"),
    Step("--delete with a member", _SHARES, "--delete --group busy"),
)
"""After the others, while a member of the group `busy` polls the topic `jobs`."""


def share_tools(cache: Path) -> list[Result]:
    """Each step, on a gateway and on a broker: "passed" if it prints the same."""
    ours, theirs = outputs(gateway_for_shares(), cache), outputs(broker_for_shares(), cache)
    return results_of("share group tools", (*STEPS, *MEMBER_STEPS), ours, theirs)


def outputs(server: AbstractContextManager[str], cache: Path) -> list[str]:
    """Return the output of each step, without what differs between any two servers."""
    (cache / "offsets.csv").write_text("jobs,0,2\njobs,1,0\n")
    with server as address:
        found = [_output(step, address, cache) for step in STEPS]
        with _member(address, "busy", "jobs"):
            found += [_output(step, address, cache) for step in MEMBER_STEPS]
    return found


def _output(step: Step, address: str, cache: Path) -> str:
    output = run(step._replace(arguments=step.arguments.replace("FOLDER", str(cache))), address, cache)
    return _masked(compared(output, address, step)).replace(str(cache), "FOLDER")


@contextmanager
def _member(address: str, group: str, topic: str) -> Iterator[None]:
    """A member of the group that polls until the block ends."""
    consumer = rd.ShareConsumer({"bootstrap.servers": address, "group.id": group, "client.id": "worker"})
    consumer.subscribe([topic])
    ended = threading.Event()

    def poll() -> None:
        while not ended.is_set():
            consumer.poll(0.5)

    for _ in range(10):
        consumer.poll(0.5)
    polling = threading.Thread(target=poll)
    polling.start()
    try:
        yield
    finally:
        ended.set()
        polling.join()
        consumer.close()


def _masked(output: str) -> str:
    """Without times, ids of members, and the places of errors in the tools; offsets in order."""
    output = re.sub(r"^at \S+\(.*\n", "", output, flags=re.MULTILINE)
    output = re.sub(r"(?<=busy )[A-Za-z0-9_-]{22}\b", "MEMBER", output)
    output = re.sub(r'(?<="offsets":)\[[\d,]+\]', lambda found: str(sorted(json.loads(found.group()))), output)
    output = re.sub(r'"timestamp":\d+', '"timestamp":TIME', output)
    return re.sub(r"^SLF4J.*\n", "", output, flags=re.MULTILINE)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--server", choices=("broker", "gateway", "both"), default="broker")
    server = parser.parse_args().server
    with tempfile.TemporaryDirectory(prefix="share-tools-") as folder:
        if server == "both":
            for result in share_tools(Path(folder)):
                print(f"{result.outcome}: {result.test}")
            return 0
        running = broker_for_shares() if server == "broker" else gateway_for_shares()
        for step, output in zip((*STEPS, *MEMBER_STEPS), outputs(running, Path(folder)), strict=True):
            print(f"=== {step.tool}: {step.arguments}\n{output}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
