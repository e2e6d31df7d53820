"""Every code block of the README and of docs/ runs, or has a comment with the reason why it does not."""

from collections.abc import Iterator

import pytest

from tests.support.pages import REPOSITORY, PageError, PageRunner, blocks, differs
from tests.support.postgres import USER, PostgresServer
from tests.support.s3 import S3Server

PAGES = {
    str(path.relative_to(REPOSITORY)): path.read_text()
    for path in (REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md")))
}
WITH_BLOCKS = [name for name, page in PAGES.items() if "```" in page]


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageRunner]:
    runner = PageRunner(tmp_path_factory.mktemp("pages"))
    yield runner
    runner.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_BLOCKS)
def test_blocks_of_page_run(name: str, runner: PageRunner, request: pytest.FixtureRequest) -> None:
    page, environment = PAGES[name], {}
    if "db.example:5432" in page:
        postgres: PostgresServer = request.getfixturevalue("postgres_server")
        page = page.replace("db.example:5432", f"127.0.0.1:{postgres.port}")
        environment = {"PGHOST": "127.0.0.1", "PGPORT": str(postgres.port), "PGUSER": USER, "PGDATABASE": "postgres"}
    if "s3.example:9000" in page:
        s3: S3Server = request.getfixturevalue("s3_server")
        page = page.replace("s3.example:9000", s3.host).replace("my-bucket", s3.bucket)
    runner.run(name, page, environment)


def test_block_without_a_statement_is_refused() -> None:
    with pytest.raises(PageError, match="line 2: a block of language 'yaml'"):
        blocks("```yaml\na: 1\n```\n")
    with pytest.raises(PageError, match="none of the reasons"):
        blocks("<!-- not run: too slow -->\n```sh\nsleep 9\n```\n")
    with pytest.raises(PageError, match="has no end"):
        blocks("```sh\ntrue\n")


def test_a_comment_applies_to_the_next_block_only() -> None:
    kinds = [block.kind for block in blocks("<!-- not run: a form -->\n```sh\nx\n```\n\n```sh\ntrue\n```\n")]
    assert kinds == ["not run", "sh"]


def test_output_is_compared_line_by_line() -> None:
    printed = "id  name\n1   a\n2   b\n"
    assert differs("id name\n2 b\n", printed) is None
    assert differs("... name\n...\n2 ...\n", printed) is None
    assert differs("2 b\n1 a\n", printed) == "1 a"
