"""The bank of the transaction tests, with a teller in each language, on two gateways that are killed in turn."""

import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from scripts.conformance.other_clients import PROGRAMS, SARAMA, go_program, kafkajs_folder
from scripts.conformance.results import TIMEOUT_S, Result
from spark_log.cluster.cluster import Cluster
from tests.support.bank import Auditor, Sent, group_of, numbered, open_bank, records_of, transfer_all
from tests.support.kafka_programs import broker_class_path
from tests.support.server_processes import GatewayProcess

TRANSFERS = 60
_EVERY = 15
"""A gateway is killed each time when so many more transfers are acknowledged."""


class _Program:
    """A teller in a process; its acknowledged transfers."""

    def __init__(self, name: str, command: list[str], folder: Path, servers: str, scratch: Path) -> None:
        transfers = scratch / f"{name}.tsv"
        transfers.write_text("".join(_line(numbered(name, number)) for number in range(TRANSFERS)))
        self.name, self.acknowledged = name, 0
        self._errors = (scratch / f"{name}.err").open("w")
        self.process = subprocess.Popen(
            [*command, servers, group_of(name), str(transfers)],
            cwd=folder, stdout=subprocess.PIPE, stderr=self._errors, text=True,
        )  # fmt: skip
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.acknowledged += line.startswith("done ")


def _line(transfer: str) -> str:
    texts = [(each.topic, each.key.decode(), each.value.decode()) for each in records_of(transfer)]
    return "\t".join(text for each in texts for text in each) + "\n"


def _records(line: str) -> list[Sent]:
    fields = line.split("\t")
    return [Sent(fields[at], fields[at + 1].encode(), fields[at + 2].encode()) for at in range(0, len(fields), 3)]


def bank(cache: Path) -> list[Result]:
    java = [str(Path(os.environ["JAVA_HOME"]) / "bin" / "java"), "-Xmx256m", "-cp", broker_class_path()]
    go = go_program(cache, f"bank-{SARAMA}", "bank.go")
    tellers = {
        "Java": ([*java, str(PROGRAMS / "Bank.java")], cache),
        "Go": ([str(go)], go.parent),
        "JavaScript": (["node", str(PROGRAMS / "bank.mjs")], kafkajs_folder(cache)),
        "Python": ([sys.executable, "-m", "scripts.conformance.bank"], Path(__file__).parents[2]),
    }
    with tempfile.TemporaryDirectory(prefix="bank-") as folder:
        scratch, address = Path(folder), f"{folder}/cluster"
        gateways = [GatewayProcess(scratch, address) for _ in range(2)]
        with Cluster.init(address) as cluster:
            open_bank(cluster, address)
            for each in gateways:
                each.start()
            servers = ",".join(each.address for each in gateways)
            programs = [_Program(name, *command, servers, scratch) for name, command in tellers.items()]
            try:
                with Auditor(cluster, list(tellers), set) as auditor:
                    _kill_in_turn(gateways, programs)
                    following = auditor.audit().following
            finally:
                for program in programs:
                    program.process.kill()
                for each in gateways:
                    each.kill()
    return [
        Result("bank", name, "passed" if following[name] == TRANSFERS else f"{following[name]} of {TRANSFERS}")
        for name in tellers
    ]


def _kill_in_turn(gateways: list[GatewayProcess], programs: list[_Program]) -> None:
    """Until all programs have ended."""
    kills, waited = 0, threading.Event()
    for _ in range(TIMEOUT_S * 20):
        if all(program.process.poll() is not None for program in programs):
            break
        if sum(program.acknowledged for program in programs) >= (kills + 1) * _EVERY:
            gateways[kills % 2].kill()
            gateways[kills % 2].start()
            kills += 1
        waited.wait(0.05)
    print(f"bank: gateways were killed {kills} times", file=sys.stderr)


if __name__ == "__main__":
    servers, transactional_id, transfers = sys.argv[1:]
    records = [_records(line) for line in Path(transfers).read_text().splitlines()]
    transfer_all(servers, transactional_id, records, lambda number: print("done", number, flush=True))
