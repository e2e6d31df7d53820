"""Kafka's own tools, on a gateway and on a real broker: their outputs are compared."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from scripts.conformance.results import Result
from scripts.conformance.servers import broker, gateway
from tests.support.kafka_programs import broker_class_path

Server = Callable[[], AbstractContextManager[str]]
"""Starts a server, and gives its address."""


class Step(NamedTuple):
    """A run of a tool. `numbers`: its output has times, so that numbers are not compared."""

    tool: str
    main: str
    arguments: str
    given: str = ""
    numbers: bool = False


TOPICS = "org.apache.kafka.tools.TopicCommand"
_GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
CONFIGS = "org.apache.kafka.tools.ConfigCommand"
PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
_OFFSETS = "org.apache.kafka.tools.GetOffsetShell"

STEPS = (
    Step("kafka-topics --create", TOPICS, "--create --topic orders --partitions 2 --config retention.ms=3600000"),
    Step("kafka-topics --create, exists", TOPICS, "--create --topic orders"),
    Step("kafka-topics --list", TOPICS, "--list"),
    Step(
        "kafka-console-producer", PRODUCER,
        "--topic orders --reader-property parse.key=true --reader-property key.separator=: --compression-codec zstd",
        "a:1\nb:2\na:3\nc:4\n",
    ),
    Step("kafka-console-consumer", CONSUMER, "--topic orders --group readers --from-beginning --max-messages 4"
         " --formatter-property print.key=true --formatter-property print.offset=true"
         " --formatter-property print.partition=true --timeout-ms 20000"),
    Step("kafka-console-consumer, group.protocol=consumer", CONSUMER,
         "--topic orders --group modern --from-beginning --max-messages 4 --command-property group.protocol=consumer"
         " --formatter-property print.key=true --formatter-property print.offset=true"
         " --formatter-property print.partition=true --timeout-ms 20000"),
    Step("kafka-consumer-groups --describe, group.protocol=consumer", _GROUPS, "--describe --group modern"),
    Step("kafka-consumer-groups --describe --state, group.protocol=consumer", _GROUPS,
         "--describe --group modern --state"),
    Step("kafka-consumer-groups --delete, group.protocol=consumer", _GROUPS, "--delete --group modern"),
    Step("kafka-get-offsets", _OFFSETS, "--topic orders"),
    Step("kafka-get-offsets, earliest", _OFFSETS, "--topic orders --time earliest"),
    Step("kafka-get-offsets, max-timestamp", _OFFSETS, "--topic orders --time max-timestamp"),
    Step("kafka-get-offsets, latest-tiered", _OFFSETS, "--topic orders --time latest-tiered"),
    Step("kafka-get-offsets, earliest-pending-upload", _OFFSETS, "--topic orders --time earliest-pending-upload"),
    Step("kafka-consumer-groups --describe", _GROUPS, "--describe --group readers"),
    Step("kafka-consumer-groups --describe --state", _GROUPS, "--describe --group readers --state"),
    Step("kafka-groups --list", "org.apache.kafka.tools.GroupsCommand", "--list"),
    Step("kafka-consumer-groups --reset-offsets", _GROUPS,
         "--reset-offsets --group readers --topic orders --to-earliest --execute"),
    Step("kafka-consumer-groups --delete", _GROUPS, "--delete --group readers"),
    Step("kafka-consumer-groups --list", _GROUPS, "--list"),
    Step("kafka-topics --alter --partitions", TOPICS, "--alter --topic orders --partitions 3"),
    Step("kafka-configs --alter", CONFIGS,
         "--alter --entity-type topics --entity-name orders --add-config max.message.bytes=2000000"),
    Step("kafka-configs --describe", CONFIGS, "--describe --entity-type topics --entity-name orders"),
    Step("kafka-configs --alter quotas", CONFIGS,
         "--alter --entity-type clients --entity-name app --add-config producer_byte_rate=50000000"),
    Step("kafka-configs --alter quotas of users by default", CONFIGS,
         "--alter --entity-type users --entity-default --add-config request_percentage=900"),
    Step("kafka-configs --describe quotas", CONFIGS, "--describe --entity-type clients --entity-name app"),
    Step("kafka-configs --describe quotas of users", CONFIGS, "--describe --entity-type users --entity-default"),
    Step("kafka-configs --alter a quota that means nothing", CONFIGS,
         "--alter --entity-type clients --entity-name app --add-config producer_byte_rate=-1"),
    Step("kafka-configs --delete quotas", CONFIGS,
         "--alter --entity-type clients --entity-name app --delete-config producer_byte_rate"),
    Step("kafka-topics --describe", TOPICS, "--describe --topic orders"),
    Step("kafka-producer-perf-test", "org.apache.kafka.tools.ProducerPerformance",
         "--topic orders --num-records 100000 --record-size 100 --throughput -1", numbers=True),
    Step("kafka-consumer-perf-test", "org.apache.kafka.tools.ConsumerPerformance",
         "--topic orders --num-records 100000 --timeout 20000", numbers=True),
    Step("kafka-topics --delete", TOPICS, "--delete --topic orders"),
    Step("kafka-topics --describe, missing", TOPICS, "--describe --topic orders"),
)  # fmt: skip

_ACLS = "org.apache.kafka.tools.AclCommand"
_USERS = "--entity-type users"
ACCESS_STEPS = (
    Step("kafka-configs, SCRAM user", CONFIGS,
         f"--alter {_USERS} --entity-name anna --add-config SCRAM-SHA-256=[iterations=8192,password=secret]"),
    Step("kafka-configs, another mechanism", CONFIGS,
         f"--alter {_USERS} --entity-name anna --add-config SCRAM-SHA-512=[password=secret]"),
    Step("kafka-configs, too few iterations", CONFIGS,
         f"--alter {_USERS} --entity-name ben --add-config SCRAM-SHA-256=[iterations=100,password=secret]"),
    Step("kafka-configs, delete a credential", CONFIGS,
         f"--alter {_USERS} --entity-name anna --delete-config SCRAM-SHA-512"),
    Step("kafka-acls --add", _ACLS, "--add --allow-principal User:anna --operation Read --topic orders --group g"),
    Step("kafka-acls --add, prefixed", _ACLS,
         "--add --deny-principal User:ben --operation All --topic raw- --resource-pattern-type prefixed"),
    Step("kafka-acls --add --producer", _ACLS, "--add --allow-principal User:anna --producer --topic out"),
    Step("kafka-acls --list", _ACLS, "--list"),
    Step("kafka-acls --list, match", _ACLS, "--list --topic raw-1 --resource-pattern-type match"),
    Step("kafka-acls --add, cluster", _ACLS, "--add --allow-principal User:anna --operation Describe --cluster"),
    Step("kafka-acls --remove", _ACLS, "--remove --force --allow-principal User:anna --operation Read --topic orders"),
    Step("kafka-acls --list, after", _ACLS, "--list"),
)  # fmt: skip
"""On servers that check ACLs, with a client that may do everything."""
_AUTHORIZER = {
    "authorizer_class_name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super_users": "User:ANONYMOUS",
}


def kafka_tools(cache: Path) -> list[Result]:
    """Each step, on a gateway and on a broker: "passed" if it prints the same."""
    on_gateway = partial(gateway, "--acls", "--super-users", "User:ANONYMOUS")
    return [
        *_compare(STEPS, gateway, broker, cache),
        *_compare(ACCESS_STEPS, on_gateway, partial(broker, **_AUTHORIZER), cache),
    ]


def _compare(steps: Sequence[Step], ours_at: Server, theirs_at: Server, cache: Path) -> list[Result]:
    outputs = []
    for server in (ours_at, theirs_at):
        with server() as address:
            outputs.append([compared(run(step, address, cache), address, step) for step in steps])
    return results_of("Kafka's tools", steps, *outputs)


def results_of(suite: str, steps: Sequence[Step], ours: Sequence[str], theirs: Sequence[str]) -> list[Result]:
    """Compare the outputs of a gateway and of a broker, and print those that differ."""
    results = []
    for step, our, their in zip(steps, ours, theirs, strict=True):
        results.append(Result(suite, step.tool, "passed" if our == their else "differs"))
        if our != their:
            print(f"--- {step.tool}: gateway\n{our}\n--- broker\n{their}\n", file=sys.stderr)
    return results


def run(step: Step, address: str, cache: Path) -> str:
    """Return the output of the tool, and its exit code."""
    java = Path(os.environ["JAVA_HOME"]) / "bin" / "java"
    done = subprocess.run(
        [str(java), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", broker_class_path(), step.main,
         "--bootstrap-server", address, *step.arguments.split()],
        cwd=cache, input=step.given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    if "Could not find or load main class" in done.stdout:
        raise RuntimeError(f"{step.tool}: {done.stdout}")
    return f"{done.stdout}exit code {done.returncode}"


def compared(output: str, address: str, step: Step) -> str:
    """The output without what differs between any two brokers: addresses, ids, times, the order of lines."""
    output = re.sub(r"^(SLF4J|\S+ \[?WARN|WARNING|log4j).*\n", "", output, flags=re.MULTILINE)
    output = output.replace(address, "ADDRESS")
    output = re.sub(r"TopicId: \S+", "TopicId: ID", output)
    output = re.sub(r"\[\d{4}-\d\d-\d\d [\d:,]+\]", "[TIME]", output)
    if step.numbers:
        output = re.sub(r"\d+ records sent, [^\n]*ms max latency\.\n", "", output)  # a report every five seconds
        output = re.sub(r"-?\d[\d.,:-]*|NaN", "N", output)
    return "\n".join(sorted(re.sub(r"[ \t]+", " ", line).strip() for line in output.splitlines()))
