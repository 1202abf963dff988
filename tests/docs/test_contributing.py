"""CONTRIBUTING.md: a program follows each section "Add …" in a copy of the project, and the result works.

The program takes each file's path from the text of the section, so a wrong or missing path fails the test.
After the steps it runs lint, the commands of `make docs` and the tests that the section names.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from docs.reference import PAGES

ROOT = Path(__file__).resolve().parents[2]
TREES = ("store_format", "rmq_spark", "tests", "docs", "conf", ".github")
FILES = (
    *("pyproject.toml", "Makefile", "pyspark_rmqlog.py", "README.md", "README.zh-CN.md"),
    *("CONTRIBUTING.md", "CHANGELOG.md"),
)
OF_THE_PAGES = (
    "tests/docs/test_reference.py",
    "tests/docs/test_chinese.py",
    "tests/docs/test_format_tables.py",
)

PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-n0")

pytestmark = [pytest.mark.process, pytest.mark.slow]


class Section:
    """A section of CONTRIBUTING.md that is followed in a copy of the project at `root`."""

    def __init__(self, root: Path, heading: str, **names: str) -> None:
        """`names` are the values of `<name>`, `<verb>` and `<module>` in the section."""
        self.root = root
        text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
        section = text.split(f"## {heading}\n")[1].split("\n## ")[0]
        for name, value in names.items():
            section = section.replace(f"<{name}>", value)
        self.paths = sorted(set(re.findall(r"`((?:[\w.-]+/)*[\w.-]+\.(?:py|md|txt))`", section)))
        self.steps = section
        self.changed: set[str] = set()
        self.tests: list[str] = []  # those to run

    def path(self, end: str) -> str:
        """The only path of the section that is `end`, or ends in it."""
        found = [path for path in self.paths if path == end or path.endswith(f"/{end}")]
        assert len(found) == 1, (
            f"the section names {found or 'no file'} for {end!r}; its files are {self.paths}"
        )
        return found[0]

    def module(self, end: str) -> str:
        """The module of the path, as an import names it."""
        return self.path(end).removesuffix(".py").replace("/", ".")

    def says(self, *words: str) -> None:
        """Asserts that the section names these words in code spans."""
        for word in words:
            assert f"`{word}`" in self.steps, f"the section does not name {word}"

    def create(self, end: str, text: str) -> None:
        """Writes a new file."""
        path = self.root / self.path(end)
        assert not path.exists()
        path.write_text(text.lstrip("\n"), encoding="utf-8")
        self.changed.add(self.path(end))

    def append(self, end: str, text: str) -> None:
        """Appends to a file of the section."""
        path = self.root / self.path(end)
        path.write_text(path.read_text(encoding="utf-8") + text, encoding="utf-8")
        self.changed.add(self.path(end))

    def insert(self, end: str, before: str, text: str) -> None:
        """Inserts `text` before the only occurrence of `before` in a file of the section."""
        self.change(self.path(end), before, text + before)

    def change(self, path: str, old: str, new: str) -> None:
        """Replaces the only occurrence of `old` in any file of the project."""
        text = (self.root / path).read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{path} has {text.count(old)} times {old!r}"
        (self.root / path).write_text(text.replace(old, new), encoding="utf-8")
        self.changed.add(path)

    def note_change(self) -> None:
        """Adds a line to the CHANGELOG."""
        text = (self.root / self.path("CHANGELOG.md")).read_text(encoding="utf-8")
        text = re.sub(r"^(### .*\n\n)", r"\1- A line.\n", text, count=1, flags=re.MULTILINE)
        (self.root / self.path("CHANGELOG.md")).write_text(text, encoding="utf-8")

    def test(self, *ends: str, also: Sequence[str] = ()) -> None:
        """Notes the quick tests to run: these files of the section, and others."""
        self.tests += [*map(self.path, ends), *also]

    def rows(self, name: str) -> dict[str, str]:
        """Page -> its first row or heading for `name`, of the generated pages that have one."""
        found = {}
        for page in PAGES:
            text = (self.root / page).read_text(encoding="utf-8")
            row = re.search(rf"^(\| `{name}` .*|## {name})$", text, re.MULTILINE)
            if row is not None:
                found[page] = row[1]
        return found


def copied(root: Path) -> Path:
    """A copy of the project."""
    for tree in TREES:
        shutil.copytree(ROOT / tree, root / tree)
    for file in FILES:
        shutil.copy2(ROOT / file, root / file)
    return root


def run(root: Path, *arguments: str) -> str:
    """Runs Python in the copy; returns its output."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{shlex.join(arguments)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def make_docs(root: Path) -> str:
    """Runs the commands of `make docs`; returns their output."""
    recipe = (root / "Makefile").read_text(encoding="utf-8").split("\ndocs:")[1].split("\n\n")[0]
    commands = re.findall(r"^\t\S+/python (.+)$", recipe, re.MULTILINE)
    assert len(commands) == 3
    return "".join(run(root, *command.split()) for command in commands)


def check(root: Path, sections: Sequence[Section]) -> None:
    """Runs lint over the changed files, and the quick tests that the sections name and those of the pages."""
    python = sorted({path for each in sections for path in each.changed if path.endswith(".py")})
    run(root, "-m", "ruff", "check", "-q", *python)
    run(root, "-m", "ruff", "format", "-q", "--check", *python)
    tests = dict.fromkeys([*(path for each in sections for path in each.tests), *OF_THE_PAGES])
    run(root, *PYTEST, "--quick", *tests)


def test_each_section_works(tmp_path: Path) -> None:
    """All sections "Add …", one after the other in one copy."""
    root = copied(tmp_path)
    adds = (add_an_option, add_a_column, add_a_view, add_a_kind, add_a_verb, add_a_service, add_a_layout)
    followed = [follow(root) for follow in adds]
    sections = [next(each) for each in followed]
    output = make_docs(root)
    assert "Whether the column `body` is read." in output
    for each in followed:
        assert next(each, None) is None  # what the section says holds with the new pages
    check(root, sections)


def add_an_option(root: Path) -> Iterator[Section]:
    """The option `bodies`: false leaves the column `body` out."""
    section = Section(root, "Add an option")
    section.says("ReadOptions", "CHOICES", "PRECEDENCE", "combined")
    section.insert(
        "options/read_options.py",
        '    Option(\n        "propertyColumns",\n',
        '    Option("bodies", "boolean", values.boolean, "Whether the column `body` is read.", "true"),\n',
    )
    section.insert("options/read_options.py", "    property_columns: tuple[str, ...]\n", "    bodies: bool\n")
    section.change(
        "rmq_spark/plan/output_fields.py",
        "    is_shared = options.group",
        '    left_out = () if options.bodies else ("body",)\n    is_shared = options.group',
    )
    section.note_change()
    section.append(
        "test_read_options.py",
        """

def test_bodies() -> None:
    assert parse_read_options({"path": "/a"}).bodies
    assert not parse_read_options({"path": "/a", "bodies": "false"}).bodies
    with pytest.raises(OptionError, match="bodies"):
        parse_read_options({"path": "/a", "bodies": "some"})
""",
    )
    section.change(
        "rmq_spark/plan/output_fields.py",
        "fields_of(options.columns or defaults, options)\n",
        "fields_of([name for name in options.columns or defaults if name not in left_out], options)\n",
    )
    section.says("tests/rmq_spark/plan/", "test_resolved_values_are_said_once_with_defaults_and_moments")
    tests = section.path("test_read_options.py")
    section.change(
        tests, '("columns", "body,flag"),', '("columns", "body,flag"),\n        ("bodies", "true"),'
    )
    effect = "tests/rmq_spark/plan/test_output_fields.py"
    with (root / effect).open("a", encoding="utf-8") as file:
        file.write(
            """

def test_bodies() -> None:
    assert "body" in names(fields_from_options(options()))
    assert "body" not in names(fields_from_options(options(bodies="false")))
"""
        )
    section.says("make docs")
    section.test("test_read_options.py", also=[effect, "tests/rmq_spark/options"])
    yield section
    assert len(section.rows("bodies")) == 2


def add_a_column(root: Path) -> Iterator[Section]:
    """The column `storedQueueId`: the queue id in the stored bytes."""
    section = Section(root, "Add a column")
    section.says("COLUMNS", "_BUILDERS", "_PROPERTY_OF", "_CONTENT", "COLUMN_TABLE", "WRITE_COLUMNS")
    section.insert(
        "message/columns.py", '    "_corrupt_record": _STRING,\n', '    "storedQueueId": pa.int32(),\n'
    )
    section.insert(
        "decode.py",
        '    "_corrupt_record": lambda',
        '    "storedQueueId": lambda rows: rows.header("queue_id"),\n',
    )
    section.insert(
        "output_fields.py",
        "    Column(CORRUPT_RECORD, ",
        '    Column("storedQueueId", "The queue id in the stored bytes.", True),\n',
    )
    section.insert(
        "produce/columns.py",
        '    WriteColumn(\n        "_corrupt_record",\n',
        '    WriteColumn("storedQueueId", (), "Ignored: `queueId` counts."),\n',
    )
    section.note_change()
    section.says("expected_row", "inner_rows", "ON_REQUEST")
    section.insert(
        "support/rows.py",
        '        "_corrupt_record": None,\n',
        '        "storedQueueId": message.queue_id,\n',
    )
    section.change(
        section.path("test_output_fields.py"),
        '    "rawBody binary, logicalQueueId int, logicalQueueOffset bigint, _corrupt_record string"\n',
        '    "rawBody binary, logicalQueueId int, logicalQueueOffset bigint, storedQueueId int, "\n'
        '    "_corrupt_record string"\n',
    )
    section.says("make docs")
    section.test("test_columns.py", "test_output_fields.py", also=["tests/rmq_spark/produce/test_columns.py"])
    yield section
    assert "docs/write.md" in section.rows("storedQueueId")


def add_a_view(root: Path) -> Iterator[Section]:
    """The view `logFiles`: one row for each file of the commitlog."""
    section = Section(root, "Add a view", name="log_files")
    section.create(
        "views/log_files.py",
        '''
"""The view `logFiles`: the files of the commitlog."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from store_format.display.columns import BROKER, LONG, TEXT, ViewColumn, batches_of
from store_format.views.view import View

if TYPE_CHECKING:
    from store_format.read.store import Store

LOG_FILE_COLUMNS = (
    BROKER,
    ViewColumn("path", TEXT, "The file."),
    ViewColumn("start", LONG, "The physical offset of its first byte."),
)


def log_files(store: Store, now_ms: int) -> Iterator[pa.RecordBatch]:
    """One row for each file of the commitlog."""
    rows = ((store.broker_name, file.path, file.start) for file in store.log.files)
    return batches_of(LOG_FILE_COLUMNS, rows)


VIEW = View("logFiles", "The files of the commitlog.", LOG_FILE_COLUMNS, log_files)
''',
    )
    section.says("VIEWS")
    registry = section.path("views/registry.py")
    section.change(
        registry, "    lag_by_topic,\n    owners,\n", "    lag_by_topic,\n    log_files,\n    owners,\n"
    )
    section.change(registry, "    problems.VIEW,\n", "    problems.VIEW,\n    log_files.VIEW,\n")
    section.change(section.path("docs/read.md"), "**Views**", "**Views** (`logFiles`)")
    section.note_change()
    section.create(
        "views/test_log_files.py",
        '''
"""The view `logFiles`, of a golden store."""

from __future__ import annotations

from store_format.store import MessageStore
from tests.support.fixtures import Golden


def test_each_file_has_a_row(golden: Golden) -> None:
    root = golden("basic-5.5.0")
    rows = MessageStore.open(str(root)).view("logFiles").to_pylist()
    assert [row["path"] for row in rows] == sorted(map(str, (root / "commitlog").iterdir()))
''',
    )
    section.says("make docs")
    hostile = section.path("views/test_hostile.py")  # takes half a minute with all views
    assert (root / hostile).exists()
    section.test("test_log_files.py", "views/test_registry.py", "test_overview_commands.py")
    yield section
    assert len(section.rows("logFiles")) == 2


def add_a_kind(root: Path) -> Iterator[Section]:
    """The kind `wide`: a unit has four bytes more than one of a simple queue."""
    section = Section(root, "Add a kind of queue file", name="wide")
    section.says("FOLDERS", "LAYOUTS", "UnitRules", "RULES", "offset_at", "QueueSlice.read")
    files, units = section.path("consumequeue/files.py"), section.path("consumequeue/units.py")
    section.change(files, 'QueueKind = Literal["simple", ', 'QueueKind = Literal["simple", "wide", ')
    section.change(files, '"batch": "batchconsumequeue"}', '"batch": "batchconsumequeue", "wide": "wide"}')
    wide = 'LAYOUTS["wide"] = np.dtype([*CQ_UNIT.descr, ("more", ">i4")])\n'
    section.change(files, "_ROCKSDB_FOLDERS = ", f"{wide}_ROCKSDB_FOLDERS = ")
    section.change(
        units,
        "\n\nRULES: ",
        """

def _wide_edges(files: UnitFiles, run: FileRun, stop: int, commit_log_min: int) -> Edges:
    first, last = files.unit(0), files.unit(stop - 1)
    return Edges(0, stop, 0, stop, first[0], last[0], last[1])


def _wide_entries(bounds: QueueBounds, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.void]]:
    with bounds.open() as files:
        return np.arange(start, stop), files.read(start, stop)


RULES: """,
    )
    section.change(
        units,
        "_batch_edges, _batch_entries),\n",
        '_batch_edges, _batch_entries),\n    "wide": UnitRules(valid_units, _wide_edges, _wide_entries),\n',
    )
    for end in ("offset_by_time.py", "unsupported.py"):
        assert (root / section.path(end)).exists()
    section.note_change()
    section.create(
        "test_wide.py",
        '''
"""Queues of the kind `wide`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from store_format.consumequeue.files import LAYOUTS
from store_format.consumequeue.slices import QueueRange
from store_format.consumequeue.units import list_queues
from store_format.opened.store import Opened


def test_a_queue_is_found_and_read(tmp_path: Path) -> None:
    directory = tmp_path / "wide/T/0"
    directory.mkdir(parents=True)
    units = np.zeros(10, LAYOUTS["wide"])
    units[:3] = [(100 * number, 100, 7, number) for number in range(3)]
    (directory / f"{0:020}").write_bytes(units.tobytes())
    (queue,) = list_queues(Opened(str(tmp_path)), "T".__eq__)
    bounds = queue.bounds(0)
    assert bounds is not None
    assert bounds.last_physical_offset == 200
    piece = QueueRange("T", 0, bounds.min_offset, bounds.max_offset, bounds, kind="wide").piece(1, 3)
    offsets, found = piece.read()
    assert offsets.tolist() == found["more"].tolist() == [1, 2]
''',
    )
    section.test("test_wide.py", also=["tests/store_format/consumequeue/test_slices_travel.py"])
    yield section


def add_a_verb(root: Path) -> Iterator[Section]:
    """`rmqlog names`: the names of the topics."""
    section = Section(root, "Add a verb to rmqlog", verb="names", module="overview")
    section.says("names_", "store_argument", "filter_options", "output_options", "FAMILIES")
    for end in ("cli/options.py", "cli/view_rows.py", "cli/output.py"):
        assert (root / section.path(end)).exists()
    section.append(
        "commands/overview.py",
        '''

@click.command("names")
@store_argument()
@filter_options("topic", "limit")
@output_options()
def names_(stores: list[MessageStore], filters: MessageChoice, output: Output) -> int:
    """The names of all topics.

    \\b
    rmqlog names /data/store
    """
    if not show_view(output, stores, "topics", ("topic",), replace(filters, include_system_topics=True)):
        return nothing("no topic matches")
    return OK
''',
    )
    section.change(
        section.path("cli/main.py"),
        '        "du": ("overview", "Disk usage: bytes by topic or day."),\n',
        '        "du": ("overview", "Disk usage: bytes by topic or day."),\n'
        '        "names": ("overview", "The names of all topics."),\n',
    )
    section.note_change()
    tests = section.path("test_overview_commands.py")
    section.change(
        tests,
        "from store_format import MessageStore\n",
        "from rmq_spark.cli.exit_codes import NOT_FOUND\nfrom store_format import MessageStore\n",
    )
    section.append(
        "test_overview_commands.py",
        """

def test_names(rmqlog: Runner, golden: Golden) -> None:
    rows = rmqlog.rows("names", golden(STORE))
    assert {"Audit", "Metrics", "Orders"} <= {row["topic"] for row in rows}
    lines = rmqlog("names", golden(STORE)).out.splitlines()
    assert max(map(len, lines)) <= 80
    assert rmqlog("names", golden(STORE), "--topic", "nothing*").code == NOT_FOUND
""",
    )
    section.says("make docs")
    section.says("EMPTY", "OTHERS")
    codes = section.path("test_exit_codes.py")
    section.change(codes, '    "ls": ("-q", 99),\n', '    "ls": ("-q", 99),\n    "names": ("-t", "None*"),\n')
    section.test("test_overview_commands.py", "test_commands.py", "test_exit_codes.py")
    yield section
    assert len(section.rows("names")) == 2
    assert "The names of all topics." in run(root, "-m", "rmq_spark.cli", "--help")


def add_a_service(root: Path) -> Iterator[Section]:
    """The service `audit`: copies each message of Jobs-0 to Audit-0."""
    section = Section(root, "Add a service", name="audit")
    section.says("StoredMessages", "MessageColumns", "ServicePlan", "Ledger.resume", "ServiceTurn")
    section.says("due", "changes", "next_due", "late_ms", "table()", "apply(session)")
    section.create("produce/audit.py", AUDIT_MESSAGES)
    produced, service = section.module("produce/audit.py"), section.module("services/service.py")
    section.create("services/audit.py", AUDIT_SERVICE.format(produced=produced, service=service))
    registry = section.path("services/turn.py")
    section.says("_BY_NAME", "NAMED_ONLY")
    row = f'    "audit": "{section.module("services/audit.py")}:Audit",\n'
    section.change(registry, '    "clean": ', f'{row}    "clean": ')
    docs = section.path("docs/services.md")
    section.change(docs, "| `flush` | writes", "| `audit` | copies messages of `Jobs` |\n| `flush` | writes")
    section.append("docs/services.md", "\n## Audit\n\nThe service `audit` copies messages.\n")
    section.note_change()
    section.create("services/test_audit.py", AUDIT_TEST)
    section.says("SCENARIOS", "_STATE_FILES")
    scenarios = section.path("service_scenarios.py")
    section.insert("service_scenarios.py", "SCENARIOS: dict[str, Scenario] = {", AUDIT_SCENARIO)
    section.change(
        scenarios,
        '    "clean": Scenario(',
        '    "audit": Scenario(_make_jobs, _run_audit, every=11),\n    "clean": Scenario(',
    )
    section.change(
        section.path("failing_service.py"), '    "timercheck",\n', '    "timercheck", "auditOffset.json",\n'
    )
    section.test("test_audit.py", also=["tests/rmq_spark/broker/services/test_turn.py"])
    crash = f"{section.path('test_crash.py')}::test_killed_at_many_changes[audit-torn]"
    yield section
    run(root, *PYTEST, crash)


def test_change_a_text(tmp_path: Path) -> None:
    """The sentence of `minPartitions`: without a Chinese text it is shown in English and counted."""
    section = Section(copied(tmp_path), "Add or change a text of the reference")
    table = "rmq_spark/options/read_options.py"
    old, new = (
        "The smallest number of partitions; queues are split for it.",
        "At least so many partitions; queues are split for it.",
    )
    section.change(table, f'"{old}"', f'"{new}"')
    texts = section.path("reference.zh-CN.txt")
    (pair,) = re.findall(
        rf"^{re.escape(old)}\n.*\n\n", (tmp_path / texts).read_text(encoding="utf-8"), re.MULTILINE
    )
    section.change(texts, pair, "")
    assert make_docs(tmp_path).endswith(f"texts without a translation, shown in English: 1\n{new}\n")
    pages = section.rows("minPartitions")
    assert section.path("docs/options.zh-CN.md") in pages
    assert len(pages) == 2
    assert all(row.endswith(f" | {new} |") for row in pages.values())
    check(tmp_path, [section])
    section.append("reference.zh-CN.txt", f"\n{new}\n至少这么多分区；为此会拆分队列。\n")
    assert make_docs(tmp_path) == ""
    check(tmp_path, [section])


def test_change_a_page_that_is_also_in_chinese(tmp_path: Path) -> None:
    """An output changes, then the English page gets a section that the Chinese page lacks."""
    section = Section(copied(tmp_path), "Change a page that is also in Chinese")
    english, chinese = section.path("docs/howto-lag.md"), section.path("docs/howto-lag.zh-CN.md")
    section.change(english, "[94, 135, 116, 116]", "[94, 135, 116, 117]")
    assert make_docs(tmp_path) == ""
    assert "[94, 135, 116, 117]" in (tmp_path / chinese).read_text(encoding="utf-8")
    run(tmp_path, *PYTEST, "--quick", section.path("test_chinese.py"))
    heading = "## Move a group\n"
    section.change(english, heading, f"## A new section\n\n```sh\nls\n```\n\n{heading}")
    with pytest.raises(AssertionError, match="Translate the text around a new block first"):
        run(tmp_path, "-m", "docs.chinese_blocks")


def add_a_layout(root: Path) -> Iterator[Section]:
    """The layout LEASE_UNIT, of 12 bytes."""
    section = Section(root, "Add a layout")
    section.says("LAYOUTS", "__all__")
    layouts = section.path("layouts.py")
    section.insert(
        "layouts.py",
        "# By name, for FORMAT.md",
        """LEASE_UNIT = unit(
    12,
    ("until", ">i8", 0, "ms, when the lease ends"),
    ("owner", ">i4", 8, "number of the owner"),
)

""",
    )
    section.change(
        layouts,
        '    "TIMER_CHECK": TIMER_CHECK,\n',
        '    "TIMER_CHECK": TIMER_CHECK,\n    "LEASE_UNIT": LEASE_UNIT,\n',
    )
    section.change(layouts, '    "MAGIC_BLANK",\n', '    "LEASE_UNIT",\n    "MAGIC_BLANK",\n')
    section.says("<!-- layout NAME -->", "<!-- end -->", "layouts.unpack", "layouts.pack")
    section.append("FORMAT.md", "\n<!-- layout LEASE_UNIT -->\n<!-- end -->\n")
    section.says("make docs")
    section.test("test_format_tables.py")
    yield section
    assert "| 8 | 4 | int32 | `owner` | number of the owner |" in (
        root / section.path("FORMAT.md")
    ).read_text(encoding="utf-8")
    code = """from store_format import layouts
packed = layouts.pack(layouts.LEASE_UNIT, dict(until=[7], owner=[1])).tobytes()
print(len(packed), layouts.unpack(packed, layouts.LEASE_UNIT))"""
    assert run(root, "-c", code) == "12 [(7, 1)]\n"


# ---- the service -------------------------------------------------------------------------------------------

AUDIT_MESSAGES = '''
"""The copies of the service `audit`."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from store_format.message.encode import MessageColumns, StoredMessages


def audited(messages: StoredMessages) -> MessageColumns:
    """The copies for the queue Audit-0."""
    return messages.copies(
        topic=pa.array(["Audit"] * len(messages)), queue_id=np.zeros(len(messages), np.int64)
    )
'''

AUDIT_SERVICE = '''
"""The service `audit`: copies each message of Jobs-0 to Audit-0."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pyarrow as pa

from {service} import Now
from {produced} import audited
from store_format.bookkeeping.ledger import Ledger, ServiceTurn
from store_format.commit.session import WriteSession
from store_format.consumequeue.slices import QueueSlice
from store_format.display.columns import LONG, ViewColumn, batch_of
from store_format.metadata.read import config_path
from store_format.read.store import Store
from store_format.read.stored_messages import read_stored_slice

_COLUMNS = (ViewColumn("queueOffset", LONG, "The offset in Jobs-0."),)
_STATE = "auditOffset.json"


@dataclass(frozen=True, slots=True)
class AuditPlan:
    """The messages from `start` up to the end of the queue; `began` is what the state file says."""

    store: Store
    piece: QueueSlice | None
    began: int
    start: int
    stop: int

    @property
    def due(self) -> int:
        return self.stop - self.start

    @property
    def changes(self) -> bool:
        return self.stop != self.began

    @property
    def next_due(self) -> int | None:
        return None

    @property
    def late_ms(self) -> int | None:
        return 0 if self.due else None

    def table(self) -> pa.Table:
        rows = [(offset,) for offset in range(self.start, self.stop)]
        return pa.Table.from_batches([batch_of(_COLUMNS, rows)])

    def apply(self, session: WriteSession) -> int:
        if self.due and self.piece is not None:
            messages, _, _ = read_stored_slice(self.store.log, self.piece)
            session.append(audited(messages), turn=ServiceTurn("audit", self.stop, self.began))
        session.files.make_directories(session.opened.path, "config")
        session.files.replace(config_path(session.opened, _STATE), json.dumps(self.stop).encode())
        return self.due


class Audit:
    """Copies the messages of Jobs-0 that it has not copied yet."""

    name = "audit"

    def plan(self, store: Store, ledger: Ledger, now: Now) -> AuditPlan:
        queue = next((each for each in store.queues("Jobs".__eq__) if each.queue_id == 0), None)
        began = json.loads(store.opened.files.read(config_path(store.opened, _STATE)) or b"0")
        if queue is None:
            return AuditPlan(store, None, began, began, began)
        start = ledger.resume("audit", began, store.log)
        return AuditPlan(store, queue.piece(start, None), began, start, queue.max_offset)
'''

AUDIT_TEST = '''
"""The service `audit`: each message once, also after a crash before the state file."""

from __future__ import annotations

from pathlib import Path

from rmq_spark.services import run_once
from tests.support.staged import make_store, numbered
from tests.support.waiting import BEGIN_MS, append, bodies


def test_each_message_is_copied_once(tmp_path: Path) -> None:
    root = make_store(tmp_path / "store")
    append(root, numbered("Jobs", 0, 5, queues=1))
    assert run_once(str(root), ["audit"], BEGIN_MS + 1)["due"].to_pylist() == [5]
    assert run_once(str(root), ["audit"], BEGIN_MS + 1, apply=True)["done"].to_pylist() == [5]
    (root / "config" / "auditOffset.json").unlink()
    assert run_once(str(root), ["audit"], BEGIN_MS + 2, apply=True)["due"].to_pylist() == [0]
    assert (root / "config" / "auditOffset.json").read_bytes() == b"5"
    assert bodies(root, "Audit") == bodies(root, "Jobs")
'''

AUDIT_SCENARIO = """def _make_jobs(root: Path) -> None:
    make_store(root)
    append(root, numbered("Jobs", 0, 9, queues=1))
    append(root, numbered("Audit", 9, 1, queues=1))


def _run_audit(root: str) -> None:
    from rmq_spark.services import run_once

    run_once(root, ["audit"], BEGIN_MS + 1_000, apply=True)


"""
