"""The code blocks of a Markdown page, in order, and how a test runs each of them.

- ```sh and ```python run. ```sql runs in PostgreSQL, as its administrator.
- ```text is the output of the block before it. A line `...` stands for any lines, and `...` in a line for any text.
- Any block with title="NAME" is written to the file NAME; nothing runs.
- An HTML comment on the line above a block changes that: `<!-- not run: REASON -->`, `<!-- fails -->` (the exit code
  is not 0, or an exception is raised), `<!-- background -->` (runs until the end of the page).
"""

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["sh", "python", "sql", "output", "file", "not run"]

REASONS = (
    "needs Docker",
    "needs Kubernetes",
    "needs a network",
    "needs several machines",
    "takes minutes",
    "a form",
    "a diagram",
)
"""The reasons for which a block may not run; a specific text may follow."""

_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*) *(?P<attributes>.*)$")
_COMMENT = re.compile(r"^ *<!-- (not run: .*|fails|background) -->$")
_TITLE = re.compile(r'title="([^"]+)"')


class PageError(Exception):
    """A block of the page says neither how it runs nor why it does not."""


@dataclass(frozen=True)
class Block:
    kind: Kind
    code: str
    line: int
    """Number of the block's first line of code in the page, from 1."""
    title: str = ""
    fails: bool = False
    background: bool = False


def blocks(page: str) -> list[Block]:
    """The blocks of the text of a page. PageError names the line of a block without instructions."""
    found: list[Block] = []
    lines = page.splitlines()
    at, comment = 0, ""
    while at < len(lines):
        line = lines[at]
        fence = _FENCE.match(line)
        if fence is None:
            if line.strip():
                said = _COMMENT.match(line)
                comment = said[1] if said else ""
            at += 1
            continue
        indent = fence["indent"]
        end = next((n for n in range(at + 1, len(lines)) if lines[n].rstrip() == f"{indent}```"), None)
        if end is None:
            raise PageError(f"line {at + 1}: the block has no end")
        code = "".join(f"{text.removeprefix(indent)}\n" for text in lines[at + 1 : end])
        found.append(_block(fence["language"], fence["attributes"], comment, code, at + 2))
        at, comment = end + 1, ""
    return found


def _block(language: str, attributes: str, comment: str, code: str, line: int) -> Block:
    if comment.startswith("not run: "):
        if not comment.removeprefix("not run: ").startswith(REASONS):
            raise PageError(f"line {line}: {comment!r} is none of the reasons {', '.join(REASONS)}")
        return Block("not run", code, line)
    if title := _TITLE.search(attributes):
        return Block("file", code, line, title=title[1])
    fails, background = comment == "fails", comment == "background"
    match language:
        case "sh" | "python" | "sql":
            return Block(language, code, line, fails=fails, background=background)
        case "text":
            return Block("output", code, line)
    raise PageError(f'line {line}: a block of language {language!r} needs title="NAME" or a comment `not run: REASON`')


def differs(expected: str, printed: str) -> str | None:
    """The first line of `expected` that `printed` lacks, in the order of `expected`; runs of spaces count as one."""
    rest = [" ".join(line.split()) for line in printed.splitlines()]
    for line in expected.splitlines():
        wanted = " ".join(line.split())
        if wanted in ("", "..."):
            continue
        pattern = re.compile(".*".join(re.escape(part) for part in wanted.split("...")))
        at = next((n for n, text in enumerate(rest) if pattern.fullmatch(text)), None)
        if at is None:
            return line
        rest = rest[at + 1 :]
    return None
