"""Cases of share groups, with Java's client: the names are those of Kafka's own integration tests.

`python -m scripts.conformance.share_groups [--server broker|gateway] [--parallel N] [CASE...]` runs them, and prints
the result of each.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from scripts.conformance.results import Result
from spark_log.cluster.cluster import Cluster
from spark_log.cluster.settings import alter_settings
from tests.support.kafka_programs import KafkaBroker, broker_class_path
from tests.support.server_processes import GatewayProcess

_PROGRAMS = Path(__file__).parents[2] / "tests" / "contract" / "kafka_programs"
_COMMON = {
    "group.share.min.record.lock.duration.ms": "1000",
    "group.share.record.lock.duration.ms": "15000",
    "group.share.min.heartbeat.interval.ms": "1000",
    "group.share.heartbeat.interval.ms": "1000",
}
PROFILES: dict[str, dict[str, str]] = {
    "default": {},
    "delivery-limit": {"group.share.delivery.count.limit": "3"},
    "max-size": {"group.share.max.size": "3"},
    "session-cache": {"group.share.max.size": "1", "group.share.max.share.sessions": "1"},
    "dead-letter-topics": {"errors.deadletterqueue.auto.create.topics.enable": "true"},
    "restart": {},
}
"""Settings of a server, by the name with which the program's cases ask for them."""
_ONE_BY_ONE = {"max-size", "session-cache", "restart"}
"""Profiles whose cases would disturb each other."""
_BROKER = {
    "auto.create.topics.enable": "false",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "3",
}


class Outcome(NamedTuple):
    """The result of a case, as the program prints it."""

    name: str
    passed: bool
    seconds: float
    error: str | None
    notes: list[str]


class _Server(Protocol):
    @property
    def addresses(self) -> str: ...

    def act(self, action: str) -> None: ...


class _Broker:
    """A Kafka broker. A movement of a coordinator is a restart."""

    def __init__(self, stack: ExitStack, settings: Mapping[str, str]) -> None:
        configs = {name.replace(".", "_"): value for name, value in {**_BROKER, **settings}.items()}
        self._broker = stack.enter_context(KafkaBroker(None, heap="1g", **configs))
        self.addresses = self._broker.address

    def act(self, action: str) -> None:
        if action in ("stop", "restart"):
            self._broker.end()
        if action in ("start", "restart"):
            self._broker.start()


class _Gateways:
    """Gateways of a cluster with these settings. A movement of a coordinator is the kill of one of two."""

    def __init__(self, stack: ExitStack, settings: Mapping[str, str], count: int) -> None:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="spark-log-share-groups-"))
        address = f"{folder}/cluster"
        with Cluster.init(address) as cluster:
            alter_settings(cluster, settings)
        self._gateways = [GatewayProcess(Path(folder), address, "--no-auto-create-topics") for _ in range(count)]
        for each in self._gateways:
            each.start()
            stack.callback(each.kill)
        self.addresses = ",".join(each.address for each in self._gateways)
        self._restarts = 0

    def act(self, action: str) -> None:
        if action == "restart":
            chosen = self._gateways[self._restarts % len(self._gateways)]
            chosen.kill()
            chosen.start()
            self._restarts += 1
        for each in self._gateways:
            if action == "stop":
                each.kill()
            elif action == "start":
                each.start()


@contextmanager
def broker_for_shares() -> Iterator[str]:
    """Address of a Kafka broker for share groups."""
    with ExitStack() as stack:
        yield _Broker(stack, _COMMON).addresses


@contextmanager
def gateway_for_shares() -> Iterator[str]:
    """Address of a gateway of a new cluster with the same settings."""
    with ExitStack() as stack:
        yield _Gateways(stack, _COMMON, 1).addresses


def share_groups(cache: Path) -> list[Result]:
    """Each case on a gateway. They are Kafka's own cases: `--server broker` shows that a broker passes them."""
    return [
        Result("share groups", each.name, "passed" if each.passed else f"failed: {each.error}")
        for each in run_cases("gateway", cache)
    ]


def run_cases(server: str, cache: Path, names: Iterable[str] = (), parallel: int = 4) -> list[Outcome]:
    """Run the named cases, or all, each on a server with the settings that it needs; prints each outcome."""
    java = compiled(cache)
    found = []
    for profile, chosen in _by_profile(java, names).items():
        with ExitStack() as stack:
            settings = {**_COMMON, **PROFILES[profile]}
            running: _Server = (
                _Broker(stack, settings)
                if server == "broker"
                else _Gateways(stack, settings, 2 if profile == "restart" else 1)
            )
            options = ["--parallel", "1" if profile in _ONE_BY_ONE else str(parallel)]
            found += _run([*java, "--bootstrap", running.addresses, *options, *chosen], running)
    return found


def compiled(cache: Path) -> list[str]:
    """The command of the program, compiled into the cache."""
    java = str(Path(os.environ["JAVA_HOME"]) / "bin" / "java")
    classes = cache / "share-groups"
    shutil.rmtree(classes, ignore_errors=True)
    sources = [str(each) for each in sorted((_PROGRAMS / "sharegroups").glob("*.java"))]
    compiler = [java, "-m", "jdk.compiler/com.sun.tools.javac.Main", "-proc:none", "-cp", _without_wildcards()]
    subprocess.run([*compiler, "-d", str(classes), *sources], check=True)
    path = f"{classes}:{broker_class_path()}"
    return [java, "-Xmx768m", "-XX:+UseSerialGC", "-cp", path, "sharegroups.Runner"]


def _without_wildcards() -> str:
    """The class path as the compiler's class wants it: only the launcher `javac`, which a JRE lacks, expands `*`."""
    entries = [Path(each) for each in broker_class_path().split(":")]
    return ":".join(
        str(file)
        for entry in entries
        for file in (sorted(entry.parent.glob("*.jar")) if entry.name == "*" else [entry])
    )


def _by_profile(java: list[str], names: Iterable[str]) -> dict[str, list[str]]:
    """Cases by the profile that they need, in the order of `PROFILES`."""
    done = subprocess.run([*java, "--list", *names], check=True, stdout=subprocess.PIPE, text=True)
    cases = [json.loads(line) for line in done.stdout.splitlines()]
    chosen = {profile: [each["name"] for each in cases if each["profile"] == profile] for profile in PROFILES}
    return {profile: found for profile, found in chosen.items() if found}


def _run(command: list[str], server: _Server) -> list[Outcome]:
    """Outcomes of the cases; the program's requests are carried out."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    found = []
    try:
        for line in process.stdout:
            said: dict[str, Any] = json.loads(line)
            if "request" in said:
                server.act(said["request"])
                process.stdin.write("done\n")
                process.stdin.flush()
                continue
            outcome = Outcome(said["name"], said["outcome"] == "passed", said["seconds"], said["error"], said["notes"])
            found.append(outcome)
            _print(outcome)
    finally:
        process.kill()
        process.wait()
    return found


def _print(outcome: Outcome) -> None:
    word = "passed" if outcome.passed else "FAILED"
    print(f"{word} {outcome.seconds:6.1f} s {outcome.name}", file=sys.stderr, flush=True)
    for text in ([outcome.error] if outcome.error else []) + outcome.notes:
        print(f"         {text}", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("cases", nargs="*", help="default: all")
    parser.add_argument("--server", choices=("broker", "gateway"), default="broker")
    parser.add_argument("--parallel", type=int, default=4, help="cases at a time, where they do not disturb each other")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="share-groups-") as folder:
        outcomes = run_cases(arguments.server, Path(folder), arguments.cases, arguments.parallel)
    passed = sum(each.passed for each in outcomes)
    print(f"{passed} of {len(outcomes)} cases passed")
    return 0 if passed == len(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
