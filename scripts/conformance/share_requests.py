"""Requests of share groups one by one: the answers of a broker and of a gateway.

`python -m scripts.conformance.share_requests [--server broker|gateway|both]` prints them; with both, those that differ.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path

from scripts.conformance.results import TIMEOUT_S, Result
from scripts.conformance.share_groups import broker_for_shares, compiled, gateway_for_shares


def share_requests(cache: Path) -> list[Result]:
    """Each step: "passed" if both answer the same."""
    ours, theirs = answers(gateway_for_shares(), cache), answers(broker_for_shares(), cache)
    results = []
    for step, seen in theirs.items():
        our = ours.get(step, "no answer")
        results.append(Result("share requests", step, "passed" if our == seen else f"gateway: {our}, broker: {seen}"))
    return results


def answers(server: AbstractContextManager[str], cache: Path) -> dict[str, str]:
    """The answer of each step, by its name. Ends at the first request that the server does not answer."""
    *java, _ = compiled(cache)
    with server as address:
        done = subprocess.run(
            [*java, "sharegroups.WireSteps", address],
            stdout=subprocess.PIPE, text=True, timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
    said = [json.loads(line) for line in done.stdout.splitlines()]
    found: dict[str, str] = {}
    for each in said:
        step = each["step"] if each["step"] not in found else f"{each['step']} ({len(found)})"
        found[step] = re.sub(r"Member \S{22} is", "Member ID is", each["answer"])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--server", choices=("broker", "gateway", "both"), default="broker")
    server = parser.parse_args().server
    with tempfile.TemporaryDirectory(prefix="share-requests-") as folder:
        if server == "both":
            results = share_requests(Path(folder))
            for result in results:
                print(f"{result.test}: {result.outcome}")
            equal = sum(result.outcome == "passed" for result in results)
            print(f"{equal} of {len(results)} answers are the same.")
            return 0
        running = broker_for_shares() if server == "broker" else gateway_for_shares()
        for step, answer in answers(running, Path(folder)).items():
            print(f"{step} => {answer}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
