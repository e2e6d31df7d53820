"""Each page of the console in chromium, at two widths, on a cluster with hostile names and bytes."""

import pytest

from spark_log.console.app import table
from spark_log.console.paths import url
from tests.support.browser import WIDTHS, visiting
from tests.support.console import EXAMPLES, TYPED

pytestmark = pytest.mark.xdist_group("browser")  # one browser and one cluster


@pytest.fixture(scope="package")
def visitor(browser, hostile):
    with visiting(browser, hostile.url, hostile.printed[-1]) as visitor:
        yield visitor


@pytest.mark.parametrize("template", [view.path for view in table().views])
def test_a_page_loads_without_errors_foreign_requests_and_barriers(visitor, template):
    visitor.faults.clear()
    visitor.page.set_viewport_size({"width": WIDTHS[0], "height": 900})
    status = visitor.open(url(template, **EXAMPLES))
    assert status == 200, visitor.page.inner_text("main")
    assert visitor.page.locator("h1").count() == 1
    visitor.page.keyboard.press("Tab")
    assert visitor.page.evaluate("document.activeElement.className") == "skip", "the first key skips to the content"
    for scheme, width in zip(("dark", "light"), WIDTHS, strict=True):
        visitor.page.emulate_media(color_scheme=scheme)
        visitor.page.set_viewport_size({"width": width, "height": 900})
        assert visitor.axe_violations() == [], (scheme, width)
    assert not visitor.is_wider_than_the_window()
    assert visitor.faults == []


@pytest.mark.parametrize("path", ["/nowhere", "/topics/..~2F", "/~00"])
def test_pages_of_errors_are_pages_too(visit, path):
    visit.expected_statuses.add(404)
    assert visit.open(path) == 404
    assert "Not found" in visit.page.inner_text("h1")
    assert visit.axe_violations() == []


def test_links_and_forms_work_without_javascript(browser, hostile):
    context = browser.new_context(java_script_enabled=False)
    try:
        page = context.new_page()
        page.goto(hostile.printed[-1])
        for title in page.locator("header nav a").all_inner_texts()[1:]:
            page.get_by_role("link", name=title, exact=True).first.click()
            assert page.locator("header nav a[aria-current]").inner_text() == title
        page.goto(hostile.url + url("/topics/{topic}/messages", topic=TYPED))
        page.get_by_label("Filter").fill("record.price > 1")
        page.get_by_role("button", name="Search").click()
        assert page.locator("[aria-label='Messages'] tbody tr").count() == 1
        page.get_by_role("button", name="Log out").click()
        page.goto(hostile.url)
        assert "Authentication is needed" in page.inner_text("h1")
    finally:
        context.close()
