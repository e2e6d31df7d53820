"""One program for each of KafkaJS, aiokafka and sarama. It must see the same on a gateway and on a broker."""

import itertools
import subprocess
import sys
from pathlib import Path

from scripts.conformance.results import Result, output_of
from scripts.conformance.servers import broker, gateway

PROGRAMS = Path(__file__).parent / "clients"
LAST_STEP = "delete the topic"
KAFKAJS, AIOKAFKA, SARAMA = "2.2.4", "0.14.0", "v1.61.1"


def other_clients(cache: Path) -> list[Result]:
    commands = {"KafkaJS": _kafkajs(cache), "aiokafka": _aiokafka(cache), "sarama": _sarama(cache)}
    results = []
    with broker() as reference, gateway() as address:
        for name, (folder, command, environment) in commands.items():
            expected, seen = (
                [line.rstrip() for line in output_of([*command, each], folder, **environment).splitlines()]
                for each in (reference, address)
            )
            if not expected or not expected[-1].startswith(LAST_STEP):
                raise RuntimeError(f"the program of {name} failed on the broker:\n{expected}")
            for theirs, ours in itertools.zip_longest(expected, seen):
                results.append(Result(name, str(theirs).partition(":")[0], "passed" if ours == theirs else "differs"))
                if ours != theirs:
                    print(f"--- {name}: gateway\n{ours}\n--- broker\n{theirs}\n", file=sys.stderr)
    return results


_Command = tuple[Path, list[str], dict[str, str]]


def kafkajs_folder(cache: Path) -> Path:
    """The folder in which programs find KafkaJS."""
    folder = cache / f"kafkajs-{KAFKAJS}"
    if not (folder / "node_modules").exists():
        folder.mkdir(exist_ok=True)
        subprocess.run(["npm", "install", "--silent", "--prefix", str(folder), f"kafkajs@{KAFKAJS}"], check=True)
    return folder


def _kafkajs(cache: Path) -> _Command:
    folder = kafkajs_folder(cache)
    return folder, ["node", str(PROGRAMS / "kafkajs.mjs")], {"KAFKAJS_NO_PARTITIONER_WARNING": "1"}


def _aiokafka(cache: Path) -> _Command:
    folder = cache / f"aiokafka-{AIOKAFKA}"
    if not folder.exists():
        pip = [sys.executable, "-m", "pip", "--quiet", "install", "--target", str(folder)]
        subprocess.run([*pip, f"aiokafka[lz4,snappy,zstd]=={AIOKAFKA}"], check=True)
    return folder, [sys.executable, str(PROGRAMS / "aiokafka_client.py")], {"PYTHONPATH": str(folder)}


def _sarama(cache: Path) -> _Command:
    program = go_program(cache, f"sarama-{SARAMA}", "sarama.go")
    return program.parent, [str(program)], {}


def go_program(cache: Path, name: str, source: str) -> Path:
    """A program of `clients/` that uses sarama, built in a folder of this name."""
    folder = cache / name
    program = folder / "program"
    if not program.exists():
        folder.mkdir(exist_ok=True)
        (folder / "go.mod").write_text("module conformance\n")
        (folder / "main.go").write_text((PROGRAMS / source).read_text())
        subprocess.run(["go", "get", f"github.com/IBM/sarama@{SARAMA}"], cwd=folder, check=True)
        subprocess.run(["go", "mod", "tidy"], cwd=folder, check=True)
        subprocess.run(["go", "build", "-o", str(program), "."], cwd=folder, check=True)
    return program
