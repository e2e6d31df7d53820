"""Debian's chromium, and pages that note everything that a page of the console must not do."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, Request, sync_playwright

AXE = Path(__file__).parents[1] / "browser" / "vendor" / "axe.min.js"
WIDTHS = (1280, 400)


def chromium_path() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    assert found is not None, "the tests need chromium: scripts/debian_package.sh chromium"
    return found


@contextmanager
def running_browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium_path(), headless=True, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        try:
            yield browser
        finally:
            browser.close()


class Visitor:
    """A page in a browser. `faults`: errors of scripts, violations of the CSP, and requests that leave the host.

    `expected_statuses`: of answers that the test asks for; chromium reports each as an error.
    """

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.faults: list[str] = []
        self.expected_statuses: set[int] = set()
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        page.on("request", self._request)
        page.on("dialog", self._dialog)

    def open(self, path: str) -> int:
        """Load a page of the console, and wait until nothing is fetched; its status."""
        answer = self.page.goto(self.url + path, wait_until="networkidle")
        assert answer is not None
        return answer.status

    def axe_violations(self) -> list[str]:
        """Serious and critical violations of accessibility, with the elements."""
        if not self.page.evaluate("'axe' in window"):  # a page keeps it
            self.page.evaluate(f"{AXE.read_text()}; undefined")
        found: dict[str, Any] = self.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        return [
            f"{violation['id']}: {violation['help']}: {json.dumps([node['html'][:200] for node in violation['nodes']])}"
            for violation in found["violations"]
            if violation["impact"] in ("serious", "critical")
        ]

    def is_wider_than_the_window(self) -> bool:
        wider: bool = self.page.evaluate(
            "document.documentElement.scrollWidth > document.documentElement.clientWidth + 1"
        )
        return wider

    def _dialog(self, dialog: Dialog) -> None:
        self.faults.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _console(self, message: ConsoleMessage) -> None:
        expected = any(f"status of {status} " in message.text for status in self.expected_statuses)
        if message.type in ("error", "warning") and not expected:
            self.faults.append(f"{message.type}: {message.text}")

    def _request(self, request: Request) -> None:
        if not request.url.startswith((self.url + "/", "data:")):
            self.faults.append(f"request to {request.url}")


@contextmanager
def visiting(browser: Browser, url: str, login: str, width: int = 1280, scheme: Any = "light") -> Iterator[Visitor]:
    """A visitor with a session of its own. `login`: an address with a token."""
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce"
    )
    try:
        visitor = Visitor(context.new_page(), url)
        visitor.page.goto(login)
        yield visitor
    finally:
        context.close()
