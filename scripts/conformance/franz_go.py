"""Tests of franz-go, from the Go module proxy."""

import re
import subprocess
from pathlib import Path

from scripts.conformance.results import TIMEOUT_S, Result, output_of
from scripts.conformance.servers import gateway

FRANZ_GO = "v1.22.2"
FRANZ_GO_TESTS = (
    "TestPing",
    "TestClient_Produce",
    "TestGroupSimple",
    "TestGroupETL",
    "TestConsumeRegex",
    "TestIssue325",
    "TestTxnEtl",
)


def franz_go(cache: Path) -> list[Result]:
    folder = cache / f"franz-go-{FRANZ_GO}"
    program = folder / "kgo.test"
    if not program.exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "go.mod").write_text("module conformance\n")
        module = "github.com/twmb/franz-go"
        subprocess.run(["go", "get", f"{module}@{FRANZ_GO}"], cwd=folder, check=True)
        source = output_of(["go", "list", "-m", "-f", "{{.Dir}}", module], folder).strip()
        subprocess.run(["go", "test", "-c", "-o", str(program), "./pkg/kgo"], cwd=source, check=True)
    pattern = f"^({'|'.join(FRANZ_GO_TESTS)})$"
    options = ["-test.v", "-test.count=1", f"-test.timeout={TIMEOUT_S}s", "-test.run", pattern]
    with gateway("--provisional-offsets") as address:
        output = output_of(
            [str(program), *options], folder, KGO_SEEDS=address, KGO_TEST_RF="1", KGO_TEST_RECORDS="5000"
        )
    found = re.findall(r"^ *--- (PASS|FAIL|SKIP): (\S+)", output, re.MULTILINE)
    words = {"PASS": "passed", "FAIL": "failed", "SKIP": "skipped"}
    finished = {name for _, name in found}
    found += [("FAIL", name) for name in FRANZ_GO_TESTS if name not in finished]
    return [Result("franz-go", test, words[outcome]) for outcome, test in sorted(found, key=lambda pair: pair[1])]
