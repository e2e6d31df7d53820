"""librdkafka's own tests, whose sources the crate rdkafka-sys carries, on a gateway and on a real broker."""

import os
import re
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

from scripts.conformance.results import Result
from scripts.conformance.servers import broker, gateway
from tests.support.kafka_programs import KAFKA_VERSION, broker_class_path

CRATE = "4.10.0"
"""Version of rdkafka-sys: librdkafka 2.12.1."""
NUMBERS = (
    "0001 0002 0003 0005 0007 0008 0011 0012 0013 0014 0015 0017 0018 0019 0020 0021 0022 0026 0029 0030 0031 0033"
    " 0034 0035 0036 0038 0039 0040 0041 0042 0044 0045 0048 0050 0051 0052 0054 0055 0056 0057 0059 0060 0061 0063"
    " 0064 0065 0067 0069 0070 0073 0083 0084 0085 0086 0089 0090 0091 0093 0099 0102 0112 0113 0114 0118 0122 0123"
    " 0125 0127 0130 0132 0137 0140"
).split()
"""The tests that need a broker and pass on a single one of Kafka 4.4 without TLS, SASL and ACLs, except those of
transactions. Variable TESTS: other numbers."""
ON_GATEWAYS_ONLY = ("0103", "0129")
"""Tests of transactions that a single broker of Kafka 4.4 refuses: 0103 creates topics with three replicas, 0129 one
with segment.bytes below 1 MiB. The last part of 0103 fails on a gateway: it wants the high watermark to count records
of open transactions, which have no offsets here. 0098 needs RapidJSON to be built, and counts control records."""
TEST_S_MAX = 180
_AT_ONCE = 3
"""Tests mostly wait."""
_MANIFEST = """
[package]
name = "conformance"
version = "0.0.0"
edition = "2021"
[lib]
path = "lib.rs"
[dependencies]
rdkafka-sys = "={}"
"""


def librdkafka(cache: Path) -> list[Result]:
    """The tests that pass on a real broker, and their results on a gateway."""
    folder = _built(cache / f"rdkafka-sys-{CRATE}")
    wanted = os.environ.get("TESTS", "").replace(",", " ").split() or NUMBERS
    shared = [number for number in wanted if number not in ON_GATEWAYS_ONLY]
    on_broker, on_gateway = (_run(server, folder, shared) if shared else {} for server in (broker, gateway))
    found = [
        Result("librdkafka", test, on_gateway.get(test, "failed"))
        for test, outcome in sorted(on_broker.items())
        if outcome == "passed"
    ]
    alone = [number for number in ON_GATEWAYS_ONLY if number in wanted or wanted is NUMBERS]
    results = _run(partial(gateway, brokers=3), folder, alone) if alone else {}
    return found + [Result("librdkafka", test, outcome) for test, outcome in sorted(results.items())]


def _built(folder: Path) -> Path:
    """The folder of librdkafka with its test program."""
    sources = folder / "vendor" / "rdkafka-sys" / "librdkafka"
    if not (sources / "tests" / "test-runner").exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "Cargo.toml").write_text(_MANIFEST.format(CRATE))
        (folder / "lib.rs").touch()
        subprocess.run(["cargo", "vendor", "--quiet"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        options = ["--disable-curl", "--disable-sasl", "--disable-ssl"]
        for command in (["./configure", *options], ["make", "libs"], ["make", "-C", "tests", "build"]):
            subprocess.run(command, cwd=sources, check=True, stdout=subprocess.DEVNULL)
    return sources


def _run(server: Callable[[], AbstractContextManager[str]], sources: Path, numbers: list[str]) -> dict[str, str]:
    """The outcome of each test that was not skipped."""
    with tempfile.TemporaryDirectory(prefix="librdkafka-") as scratch, server() as address:
        conf = Path(scratch) / "test.conf"
        conf.write_text(f"metadata.broker.list={address}\ntest.topic.random=true\n")
        environment = {
            "RDKAFKA_TEST_CONF": str(conf),
            "BROKERS": address,
            "KAFKA_PATH": str(_kafka(Path(scratch))),
            "TEST_KAFKA_VERSION": KAFKA_VERSION,
            "LD_LIBRARY_PATH": f"{sources / 'src'}:{sources / 'src-cpp'}",
        }

        def run(number: str) -> dict[str, str]:
            log = Path(scratch) / number
            try:
                with log.open("w") as output:
                    subprocess.run(
                        ["./test-runner", "-L", "-E", "-Q", "-p1"],
                        cwd=sources / "tests",
                        env={**os.environ, **environment, "TESTS": number},
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        timeout=TEST_S_MAX,
                        check=False,
                    )
            except subprocess.TimeoutExpired:
                pass
            printed = log.read_text(errors="replace")
            return {
                **dict(_outcomes(number, printed)),
                **(_parts(number, printed) if number in ON_GATEWAYS_ONLY else {}),
            }

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return {test: outcome for found in pool.map(run, numbers) for test, outcome in found.items()}


def _outcomes(number: str, output: str) -> Iterator[tuple[str, str]]:
    """Those of the program's table, or of one test if the program did not come to its end."""
    found = re.findall(rf"({number}_\w+) +\| +(PASSED|FAILED|RUNNING|SKIPPED)", output)
    for test, word in found or [(number, "FAILED")]:
        if word != "SKIPPED":
            yield test, "passed" if word == "PASSED" else "failed"


def _parts(number: str, output: str) -> dict[str, str]:
    """The parts of a test, as it names them."""
    found = re.findall(r"\[ (do_test_\w+):\d+:? ?(.*?):? PASS", output)
    passed = {f"{number} {name} {what}".rstrip(): "passed" for name, what in found}
    failed = re.findall(rf'"{number}_\w+ \((do_test_\w+):\d+\)" failed', output)
    return {**passed, **{f"{number} {name}": "failed" for name in failed}}


def _kafka(folder: Path) -> Path:
    """A folder with the tool of Kafka that some tests start."""
    (folder / "bin").mkdir()
    tool = folder / "bin" / "kafka-topics.sh"
    java = Path(os.environ["JAVA_HOME"]) / "bin" / "java"
    command = [str(java), "-Xmx128m", "-cp", broker_class_path(), "org.apache.kafka.tools.TopicCommand"]
    tool.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    tool.chmod(0o755)
    return folder
