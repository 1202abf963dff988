"""The journeys of `tests/docs/journeys/`: what a person wants, where the command is found, what must be seen.

A task is a heading `## 3. …`, a line `Found in …`, and blocks of shell, Python or SQL, each followed by a
block of text: lines that the output must have, in this order. `…` in a line stands for any text. A block that
prints nothing has the files it makes: `/data/rate.svg: <svg…` is a file and its first line.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.doc_pages import ROOT, Block, Session, blocks
from tests.support.prompt import run_block

DIRECTORY = ROOT / "tests" / "docs" / "journeys"

_TASK = re.compile(r"^## (\d+)\. (.*)$", re.MULTILINE)
_FOUND = re.compile(
    r"^Found in (?:\[[^\]]*\]\((?P<link>[^)]*)\)|the output of task (?P<task>\d+)|`(?P<help>rmqlog[^`]*)`)\.",
    re.MULTILINE,
)
_EXCHANGE = re.compile(r"^\| `(.*?)` \| `(.*?)` \|$", re.MULTILINE)
_HEADING = re.compile(r"^(#+) (.*)$", re.MULTILINE)
_LINK = re.compile(r"^\[[^\]]*\]: ([^#\s]+\.md)|\]\(([^)#\s]+\.md)", re.MULTILINE)
_SPAN = re.compile(r"`([^`\n]+)`")
_FILE = re.compile(r"^/data/(\S+): (.*)$", re.MULTILINE)
_EXIT_CODE = re.compile(r"\s+# exit code \d$")


@dataclass(frozen=True, slots=True)
class Task:
    """One task. `link` is the page and its section, or `task` the earlier one, or `help` the command."""

    number: int
    title: str
    link: str | None
    task: int | None
    help: str | None
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class Journey:
    """One person's tasks. `exchanges` are pairs (text of a page, text of the journey)."""

    name: str
    text: str
    exchanges: tuple[tuple[str, str], ...]
    tasks: tuple[Task, ...]

    def in_its_words(self, text: str) -> str:
        """The text of a page, with this journey's store, topic and names."""
        for theirs, mine in self.exchanges:
            text = text.replace(theirs, mine)
        return text


def read_journey(name: str) -> Journey:
    text = (DIRECTORY / f"{name}.md").read_text(encoding="utf-8")
    exchanges = tuple(_EXCHANGE.findall(text.partition("\n## 1. ")[0]))
    return Journey(name, text, exchanges, tuple(_tasks(text)))


def _tasks(text: str) -> Iterator[Task]:
    found = list(_TASK.finditer(text))
    for heading, behind in zip(found, [*found[1:], None], strict=True):
        rest = text[heading.end() : None if behind is None else behind.start()]
        body = re.split(r"^## ", rest, maxsplit=1, flags=re.MULTILINE)[0]
        source = _FOUND.search(body)
        assert source is not None, f"task {heading[1]} does not say where its command is found"
        before = text.count("\n", 0, heading.end())
        yield Task(
            int(heading[1]),
            heading[2],
            source["link"],
            int(source["task"]) if source["task"] else None,
            source["help"],
            tuple(Block(b.line + before, b.language, b.text, b.output) for b in blocks(body)),
        )


def section(link: str) -> tuple[Path, str]:
    """The page of a link in a journey, and the text of the section that its anchor names."""
    target, _, anchor = link.partition("#")
    page = (DIRECTORY / target).resolve()
    text = page.read_text(encoding="utf-8")
    if not anchor:
        return page, text
    headings = list(_HEADING.finditer(_without_code(text)))
    for i, heading in enumerate(headings):
        if _anchor(heading[2]) == anchor:
            behind = [each for each in headings[i + 1 :] if len(each[1]) <= len(heading[1])]
            return page, text[heading.start() : behind[0].start() if behind else None]
    raise AssertionError(f"{page.name} has no section #{anchor}")


def _without_code(text: str) -> str:
    """The text with its blocks of code blanked: a comment there looks like a heading."""
    return re.sub(r"^```.*?^```$", lambda code: " " * len(code[0]), text, flags=re.MULTILINE | re.DOTALL)


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def linked_from_readme() -> set[Path]:
    """README.md, and the pages to which it links."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    links = [match[1] or match[2] for match in _LINK.finditer(text)]
    return {ROOT / "README.md", *((ROOT / link).resolve() for link in links)}


def offered(text: str) -> list[str]:
    """What a page offers to type: the statements of its blocks, and its spans of code."""
    spans = [Block(0, "span", span, None) for span in _SPAN.findall(_without_code(text))]
    return [each for block in [*blocks(text), *spans] for each in statements(block)]


def statements(block: Block) -> list[str]:
    """What a block consists of: commands of shell, lines of SQL, statements of Python.

    Comments, docstrings, line breaks and the expected exit codes are left out.
    """
    if block.language in ("python", "span"):
        try:
            return [ast.unparse(_Bare().visit(each)) for each in ast.parse(block.text).body]
        except SyntaxError:
            assert block.language == "span", block.text
    text = block.text.replace("\\\n", "") if block.language == "sh" else block.text
    return [_plain(_EXIT_CODE.sub("", line)) for line in text.splitlines() if line.strip()]


class _Bare(ast.NodeTransformer):
    """Takes docstrings out of functions, and line breaks out of strings."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if ast.get_docstring(node) is not None:
            node.body = node.body[1:]
        return self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, str):
            return ast.copy_location(ast.Constant(_plain(node.value)), node)
        return node


def lacks(expected: str, printed: str) -> str | None:
    """The first of the expected lines that the output does not have, in their order; None if it has all."""
    lines = [_plain(line) for line in printed.splitlines()]
    at = 0
    for wanted in filter(None, map(_plain, expected.splitlines())):
        pattern = re.compile(".*".join(map(re.escape, wanted.split("…"))))
        found = next((i for i in range(at, len(lines)) if pattern.fullmatch(lines[i])), None)
        if found is None:
            return wanted
        at = found + 1
    return None


def _plain(line: str) -> str:
    return re.sub(r"\s+", " ", line).strip()


def first_lines(directory: Path, block: Block) -> str:
    """The first line of each file under `directory` that the block's output names."""
    found = []
    for name, _ in _FILE.findall(block.output or ""):
        with (directory / name).open(encoding="utf-8", errors="replace") as file:
            found.append(f"/data/{name}: {file.readline()}")
    return "\n".join(found)


@dataclass
class JourneySession(Session):
    """One person at work: a last expression of Python is shown, and Spark starts when a block names it."""

    def does(self, block: Block) -> str:
        """What a block printed; without output, the first lines of the files that it made."""
        printed = self.run(block)
        if printed:
            return printed
        return first_lines(self.directory, block)

    def _python(self, text: str) -> str:
        if re.search(r"\bspark\b", text):
            self.spark()  # so that getOrCreate finds it
        return run_block(text, self.names)


# ---- a new environment, as the README installs it ----------------------------------------------------------

_INSTALL = re.compile(r"^## Install\n.*?^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INSTALL_TIMEOUT_S = 900


def _environment(programs: Path) -> dict[str, str]:
    """Variables of a person who activated the environment: none of this test run."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "PYSPARK", "SPARK"))
    }
    return {**kept, "PATH": f"{programs}{os.pathsep}{kept['PATH']}"}


def install_as_the_readme_says(directory: Path) -> Path:
    """Runs the README's Install block in a copy of this checkout; returns the directory of its programs.

    The demo store of the block is `directory`/shop.
    """
    checkout = directory / "checkout"
    for name in subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines():
        if (ROOT / name).is_file():
            (checkout / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, checkout / name)
    block = _INSTALL.search((ROOT / "README.md").read_text(encoding="utf-8"))
    assert block is not None
    done = subprocess.run(
        ["bash", "-e", "-c", block[1].replace("/tmp/", f"{directory}/")],
        cwd=checkout,
        env=_environment(Path(sys.base_prefix) / "bin"),
        capture_output=True,
        text=True,
        timeout=_INSTALL_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{block[1]}\n{done.stdout}\n{done.stderr}"
    return checkout / ".venv" / "bin"


@dataclass
class FreshSession(JourneySession):
    """One person in an environment of their own: every command is a process, Python is one prompt."""

    programs: Path = Path()
    prompt: subprocess.Popen[str] | None = None

    def _bash(self, command: str) -> tuple[int, str]:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.directory,
            env=_environment(self.programs),
            capture_output=True,
            text=True,
            timeout=_INSTALL_TIMEOUT_S,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    _rmqlog = _bash

    def _python(self, text: str) -> str:
        assert self.prompt is not None
        assert self.prompt.stdin is not None
        assert self.prompt.stdout is not None
        self.prompt.stdin.write(json.dumps(text) + "\n")
        self.prompt.stdin.flush()
        printed, error = json.loads(self.prompt.stdout.readline())
        assert error is None, error
        return str(printed)


@contextmanager
def fresh_session(session: FreshSession) -> Iterator[FreshSession]:
    """The session with its Python prompt, which ends with the block."""
    program = [str(session.programs / "python"), str(ROOT / "tests" / "support" / "prompt.py")]
    session.prompt = subprocess.Popen(
        program,
        cwd=session.directory,
        env=_environment(session.programs),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with session.prompt:
        yield session
