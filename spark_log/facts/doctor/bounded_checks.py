"""Runs checks side by side, each with a limit of time: one that hangs or fails does not stop the others."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial

from spark_log import clock
from spark_log.errors import MetadataStoreUnavailableError, SparkLogError, redact
from spark_log.facts.doctor.findings import Finding, Severity, error
from spark_log.facts.doctor.store_rules import store_failure
from spark_log.process import no_thread, settle, start_thread


@dataclass(frozen=True)
class Check:
    """A named check. `run` returns its findings. `late` and `late_remedy` are the severity and the remedy if there is
    no answer in time.

    Checks of the same `lane` run one after the other, so that those of a store need one connection. A `subject`, such
    as a data store, is named in each finding.
    """

    name: str
    run: Callable[[], list[Finding]]
    late: Severity = Severity.ERROR
    late_remedy: str = "look at its disk, mount or server: it hangs. A longer limit: --timeout SECONDS"
    lane: str = ""
    subject: str = ""


def run_checks(checks: Sequence[Check], limit_s: float) -> list[Finding]:
    """Run the checks for at most `limit_s`. Return their findings in the order of the checks, without duplicates."""
    until_s = clock.monotonic_s() + limit_s
    answers = _begin_all(checks)
    findings: list[Finding] = []
    for check, answer in answers:
        try:
            of_check = answer.result(max(0.0, until_s - clock.monotonic_s()))
        except TimeoutError:
            of_check = [Finding(check.name, check.late, f"no answer in {limit_s:g} s", check.late_remedy)]
        except Exception as failure:  # also a bug: the other findings are still useful
            of_check = [_failed(check, failure)]
        findings += (
            [replace(each, seen=f"{check.subject}: {each.seen}") for each in of_check] if check.subject else of_check
        )
    return list(dict.fromkeys(findings))


def _begin_all(checks: Sequence[Check]) -> "list[tuple[Check, Future[list[Finding]]]]":
    answers = [(check, Future[list[Finding]]()) for check in checks]
    lanes: dict[object, list[tuple[Check, Future[list[Finding]]]]] = {}
    for number, (check, answer) in enumerate(answers):
        lanes.setdefault(check.lane or number, []).append((check, answer))
    for lane in lanes.values():
        if start_thread(partial(_run_lane, lane), "spark-log-doctor") is None:
            for _, answer in lane:
                answer.set_exception(no_thread())
    return answers


def _run_lane(lane: "Sequence[tuple[Check, Future[list[Finding]]]]") -> None:
    for check, answer in lane:
        settle(answer, check.run)


def _failed(check: Check, failure: Exception) -> Finding:
    if isinstance(failure, MetadataStoreUnavailableError):
        return store_failure(failure)
    is_own_error = isinstance(failure, SparkLogError | OSError)
    text = " ".join(redact(str(failure)).split())
    return error(
        check.name,
        f"cannot be checked: {text if is_own_error else f'{type(failure).__name__}: {text}'}",
        "the message says what to correct; docs/reference/errors.md has each error",
    )
