"""Test suites of Kafka clients, and Kafka's own tools, on a gateway: `make conformance`.

Each suite is fetched once from its registry into a folder outside the repository, and runs on a gateway of a temporary
cluster, over loopback. Kafka's tools run on a real broker too, and their outputs are compared. The result is a table
in Markdown.
"""

import argparse
import contextlib
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from spark_log.cluster.cluster import Cluster
from tests.support.gateway_process import GatewayProcess
from tests.support.kafka_broker import KafkaBroker
from tests.support.kafka_jars import broker_class_path

KAFKA_PYTHON = "3.0.12"
FRANZ_GO = "v1.22.2"
FRANZ_GO_TESTS = (
    "TestPing",
    "TestClient_Produce",
    "TestGroupSimple",
    "TestGroupETL",
    "TestConsumeRegex",
    "TestIssue325",
)
TIMEOUT_S = 600
_PARTITIONS = "4"


class Result(NamedTuple):
    suite: str
    test: str
    outcome: str


@contextlib.contextmanager
def _gateway() -> Iterator[str]:
    """Address of a gateway of a new cluster."""
    with tempfile.TemporaryDirectory(prefix="spark-log-conformance-") as folder:
        address = f"{folder}/cluster"
        Cluster.init(address).close()
        with GatewayProcess(Path(folder), address, "--partitions", _PARTITIONS) as gateway:
            yield gateway.address


def _output(command: list[str], folder: Path, **environment: str) -> str:
    """Standard output and errors, whatever the exit code is."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    return done.stdout


def franz_go(cache: Path) -> list[Result]:
    folder = cache / f"franz-go-{FRANZ_GO}"
    program = folder / "kgo.test"
    if not program.exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "go.mod").write_text("module conformance\n")
        module = "github.com/twmb/franz-go"
        subprocess.run(["go", "get", f"{module}@{FRANZ_GO}"], cwd=folder, check=True)
        source = _output(["go", "list", "-m", "-f", "{{.Dir}}", module], folder).strip()
        subprocess.run(["go", "test", "-c", "-o", str(program), "./pkg/kgo"], cwd=source, check=True)
    pattern = f"^({'|'.join(FRANZ_GO_TESTS)})$"
    options = ["-test.v", "-test.count=1", f"-test.timeout={TIMEOUT_S}s", "-test.run", pattern]
    with _gateway() as address:
        output = _output([str(program), *options], folder, KGO_SEEDS=address, KGO_TEST_RF="1", KGO_TEST_RECORDS="5000")
    found = re.findall(r"^ *--- (PASS|FAIL|SKIP): (\S+)", output, re.MULTILINE)
    words = {"PASS": "passed", "FAIL": "failed", "SKIP": "skipped"}
    finished = {name for _, name in found}
    found += [("FAIL", name) for name in FRANZ_GO_TESTS if name not in finished]
    return [Result("franz-go", test, words[outcome]) for outcome, test in sorted(found, key=lambda pair: pair[1])]


_SERVICE = '''
class ExternalService:
    """A broker that was started elsewhere."""

    def __init__(self, host, port):
        self.host, self.port = host, port

    def open(self):
        pass

    close = dump_logs = open


class SpawnedService:
    pass
'''


def kafka_python(cache: Path) -> list[Result]:
    """The integration tests. The sdist leaves out test/service.py, of which only a part is needed here."""
    folder = cache / f"kafka_python-{KAFKA_PYTHON}"
    pip = [sys.executable, "-m", "pip", "--quiet"]
    if not (folder / "complete").exists():
        sdist = ["--no-deps", "--no-build-isolation", "--no-binary", ":all:", f"kafka-python=={KAFKA_PYTHON}"]
        subprocess.run([*pip, "download", "-d", str(cache), *sdist], check=True)
        with tarfile.open(cache / f"{folder.name}.tar.gz") as archive:
            archive.extractall(cache, filter="data")
        needed = ["pytest-mock", "lz4", "python-snappy", "cramjam", "zstandard"]
        subprocess.run([*pip, "install", "--no-deps", "--target", str(folder / "needed"), *needed], check=True)
        (folder / "test" / "__init__.py").touch()
        (folder / "test" / "service.py").write_text(_SERVICE)
        (folder / "kafka-bin").mkdir()
        (folder / "complete").touch()
    options = ["-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-W", "ignore", "--timeout", "60"]
    options += ["-q", "-rA", "--show-capture", "no", "--tb", "no", "-o", "log_level=WARNING"]
    with _gateway() as address:
        output = _output(
            [sys.executable, "-m", "pytest", "test/integration", *options],
            folder,
            KAFKA_URI=f"kafka://{address}",
            KAFKA_VERSION="4.1.0",
            KAFKA_ROOT=str(folder / "kafka-bin"),
            PYTHONPATH=f"{folder}:{folder / 'needed'}",
        )
    found = re.findall(r"^(PASSED|FAILED|ERROR) test/integration/\w+\.py::(\S+)", output, re.MULTILINE)
    if not found:
        raise RuntimeError(f"kafka-python's tests did not run:\n{output[-4000:]}")
    # The tests of TLS start a broker of their own from files that the sdist leaves out.
    return [Result("kafka-python", test, word.lower()) for word, test in sorted(found, key=lambda pair: pair[1])
            if not test.startswith("TestSSLConnection")]  # fmt: skip


class Step(NamedTuple):
    """A run of a tool. `numbers`: its output has times, so that numbers are not compared."""

    tool: str
    main: str
    arguments: str
    given: str = ""
    numbers: bool = False


_TOPICS = "org.apache.kafka.tools.TopicCommand"
_GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
_CONFIGS = "kafka.admin.ConfigCommand"
_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
_OFFSETS = "org.apache.kafka.tools.GetOffsetShell"

STEPS = (
    Step("kafka-topics --create", _TOPICS, "--create --topic orders --partitions 2 --config retention.ms=3600000"),
    Step("kafka-topics --create, exists", _TOPICS, "--create --topic orders"),
    Step("kafka-topics --list", _TOPICS, "--list"),
    Step(
        "kafka-console-producer", "org.apache.kafka.tools.ConsoleProducer",
        "--topic orders --property parse.key=true --property key.separator=: --compression-codec zstd",
        "a:1\nb:2\na:3\nc:4\n",
    ),
    Step("kafka-console-consumer", _CONSUMER, "--topic orders --group readers --from-beginning --max-messages 4"
         " --property print.key=true --property print.offset=true --property print.partition=true --timeout-ms 20000"),
    Step("kafka-get-offsets", _OFFSETS, "--topic orders"),
    Step("kafka-get-offsets, earliest", _OFFSETS, "--topic orders --time earliest"),
    Step("kafka-get-offsets, max-timestamp", _OFFSETS, "--topic orders --time max-timestamp"),
    Step("kafka-consumer-groups --describe", _GROUPS, "--describe --group readers"),
    Step("kafka-consumer-groups --describe --state", _GROUPS, "--describe --group readers --state"),
    Step("kafka-consumer-groups --reset-offsets", _GROUPS,
         "--reset-offsets --group readers --topic orders --to-earliest --execute"),
    Step("kafka-consumer-groups --delete", _GROUPS, "--delete --group readers"),
    Step("kafka-consumer-groups --list", _GROUPS, "--list"),
    Step("kafka-topics --alter --partitions", _TOPICS, "--alter --topic orders --partitions 3"),
    Step("kafka-configs --alter", _CONFIGS,
         "--alter --entity-type topics --entity-name orders --add-config max.message.bytes=2000000"),
    Step("kafka-configs --describe", _CONFIGS, "--describe --entity-type topics --entity-name orders"),
    Step("kafka-topics --describe", _TOPICS, "--describe --topic orders"),
    Step("kafka-producer-perf-test", "org.apache.kafka.tools.ProducerPerformance",
         "--topic orders --num-records 100000 --record-size 100 --throughput -1", numbers=True),
    Step("kafka-consumer-perf-test", "org.apache.kafka.tools.ConsumerPerformance",
         "--topic orders --messages 100000 --timeout 20000", numbers=True),
    Step("kafka-topics --delete", _TOPICS, "--delete --topic orders"),
    Step("kafka-topics --describe, missing", _TOPICS, "--describe --topic orders"),
)  # fmt: skip


def kafka_tools(cache: Path) -> list[Result]:
    """Each step, on a gateway and on a broker: "passed" if it prints the same."""
    outputs = []
    for server in (_gateway, _broker):
        with server() as address:
            outputs.append([_compared(_run(step, address, cache), address, step) for step in STEPS])
    results = []
    for step, ours, theirs in zip(STEPS, *outputs, strict=True):
        results.append(Result("Kafka's tools", step.tool, "passed" if ours == theirs else "differs"))
        if ours != theirs:
            print(f"--- {step.tool}: gateway\n{ours}\n--- broker\n{theirs}\n", file=sys.stderr)
    return results


@contextlib.contextmanager
def _broker() -> Iterator[str]:
    with KafkaBroker(num_partitions=_PARTITIONS) as broker:
        yield broker.address


def _run(step: Step, address: str, cache: Path) -> str:
    java = Path(os.environ["JAVA_HOME"]) / "bin" / "java"
    server = ["--bootstrap-server", address]
    if step.main.endswith("ProducerPerformance"):
        server = ["--producer-props", f"bootstrap.servers={address}"]
    done = subprocess.run(
        [str(java), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", broker_class_path(), step.main, *server,
         *step.arguments.split()],
        cwd=cache, input=step.given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=120, check=False,
    )  # fmt: skip
    return f"{done.stdout}exit code {done.returncode}"


def _compared(output: str, address: str, step: Step) -> str:
    """The output without what differs between any two brokers: addresses, ids, times, the order of lines."""
    output = re.sub(r"^(SLF4J|\S+ \[?WARN|WARNING|log4j).*\n", "", output, flags=re.MULTILINE)
    output = output.replace(address, "ADDRESS")
    output = re.sub(r"TopicId: \S+", "TopicId: ID", output)
    output = re.sub(r"\[\d{4}-\d\d-\d\d [\d:,]+\]", "[TIME]", output)
    if step.numbers:
        output = re.sub(r"\d+ records sent, [^\n]*ms max latency\.\n", "", output)  # a report every five seconds
        output = re.sub(r"-?\d[\d.,:-]*|NaN", "N", output)
    return "\n".join(sorted(re.sub(r"[ \t]+", " ", line).strip() for line in output.splitlines()))


SUITES: dict[str, Callable[[Path], list[Result]]] = {
    "franz-go": franz_go,
    "kafka-python": kafka_python,
    "kafka-tools": kafka_tools,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("suites", nargs="*", help=f"of {', '.join(SUITES)}; default: all")
    home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    parser.add_argument("--cache", type=Path, default=home / "spark-log-conformance", help="where suites are kept")
    arguments = parser.parse_args()
    unknown = set(arguments.suites) - set(SUITES)
    if unknown:
        parser.error(f"no such suite: {', '.join(sorted(unknown))}")
    cache = arguments.cache.resolve()
    cache.mkdir(parents=True, exist_ok=True)
    results = [result for name in arguments.suites or SUITES for result in SUITES[name](cache)]
    print("| Suite | Test | Result |\n| --- | --- | --- |")
    for result in results:
        print(f"| {result.suite} | `{result.test}` | {result.outcome} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
