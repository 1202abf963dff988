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
from collections.abc import Sequence
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


class Project:
    """A copy of the project, and the section of CONTRIBUTING.md that is followed in it."""

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
        for tree in TREES:
            shutil.copytree(ROOT / tree, root / tree)
        for file in FILES:
            shutil.copy2(ROOT / file, root / file)

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

    def run(self, *arguments: str) -> str:
        """Runs Python in the copy; returns its output."""
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.root,
            env=os.environ | {"PYTHONPATH": str(self.root)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{shlex.join(arguments)}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def make_docs(self) -> str:
        """Runs the commands of `make docs`; returns their output."""
        self.says("make docs")
        makefile = (self.root / "Makefile").read_text(encoding="utf-8")
        recipe = makefile.split("\ndocs:")[1].split("\n\n")[0]
        commands = re.findall(r"^\t\S+/python (.+)$", recipe, re.MULTILINE)
        assert len(commands) == 2
        return "".join(self.run(*command.split()) for command in commands)

    def check(self, *ends: str, also: Sequence[str] = ()) -> None:
        """Runs lint over the changed files, and the quick tests of these files and of the pages."""
        python = sorted(path for path in self.changed if path.endswith(".py"))
        self.run("-m", "ruff", "check", "-q", *python)
        self.run("-m", "ruff", "format", "-q", "--check", *python)
        tests = [*map(self.path, ends), *OF_THE_PAGES, *also]
        self.run(*PYTEST, "--quick", *tests)

    def rows(self, name: str) -> dict[str, str]:
        """Page -> its first row or heading for `name`, of the generated pages that have one."""
        found = {}
        for page in PAGES:
            text = (self.root / page).read_text(encoding="utf-8")
            row = re.search(rf"^(\| `{name}` .*|## {name})$", text, re.MULTILINE)
            if row is not None:
                found[page] = row[1]
        return found


def test_add_an_option(tmp_path: Path) -> None:
    """The option `bodies`: false leaves the column `body` out."""
    project = Project(tmp_path, "Add an option")
    project.says("ReadOptions", "CHOICES", "PRECEDENCE", "combined")
    project.insert(
        "options/read_options.py",
        '    Option(\n        "propertyColumns",\n',
        '    Option("bodies", "boolean", values.boolean, "Whether the column `body` is read.", "true"),\n',
    )
    project.insert("options/read_options.py", "    property_columns: tuple[str, ...]\n", "    bodies: bool\n")
    project.change(
        "rmq_spark/plan/output_fields.py",
        "    is_shared = options.group",
        '    left_out = () if options.bodies else ("body",)\n    is_shared = options.group',
    )
    project.note_change()
    project.append(
        "test_read_options.py",
        """

def test_bodies() -> None:
    assert parse_read_options({"path": "/a"}).bodies
    assert not parse_read_options({"path": "/a", "bodies": "false"}).bodies
    with pytest.raises(OptionError, match="bodies"):
        parse_read_options({"path": "/a", "bodies": "some"})
""",
    )
    project.change(
        "rmq_spark/plan/output_fields.py",
        "for name in options.columns or defaults]\n",
        "for name in options.columns or defaults if name not in left_out]\n",
    )
    project.says("tests/rmq_spark/plan/", "test_resolved_values_are_said_once_with_defaults_and_moments")
    tests = project.path("test_read_options.py")
    project.change(
        tests, '("columns", "body,flag"),', '("columns", "body,flag"),\n        ("bodies", "true"),'
    )
    effect = "tests/rmq_spark/plan/test_output_fields.py"
    with (tmp_path / effect).open("a", encoding="utf-8") as file:
        file.write(
            """

def test_bodies() -> None:
    assert "body" in names(fields_from_options(options()))
    assert "body" not in names(fields_from_options(options(bodies="false")))
"""
        )
    assert "Whether the column `body` is read." in project.make_docs()
    assert len(project.rows("bodies")) == 2
    project.check("test_read_options.py", also=[effect, "tests/rmq_spark/options"])


def test_add_a_column(tmp_path: Path) -> None:
    """The column `storedQueueId`: the queue id in the stored bytes."""
    project = Project(tmp_path, "Add a column")
    project.says("COLUMNS", "_BUILDERS", "_PROPERTY_OF", "_CONTENT", "COLUMN_TABLE", "WRITE_COLUMNS")
    project.insert(
        "message/columns.py", '    "_corrupt_record": _STRING,\n', '    "storedQueueId": pa.int32(),\n'
    )
    project.insert(
        "decode.py",
        '    "_corrupt_record": lambda',
        '    "storedQueueId": lambda rows: rows.header("queue_id"),\n',
    )
    project.insert(
        "output_fields.py",
        "    Column(CORRUPT_RECORD, ",
        '    Column("storedQueueId", "The queue id in the stored bytes.", True),\n',
    )
    project.insert(
        "produce/columns.py",
        '    WriteColumn(\n        "_corrupt_record",\n',
        '    WriteColumn("storedQueueId", (), "Ignored: `queueId` counts."),\n',
    )
    project.note_change()
    project.says("expected_row", "inner_rows", "ON_REQUEST")
    project.insert(
        "support/rows.py",
        '        "_corrupt_record": None,\n',
        '        "storedQueueId": message.queue_id,\n',
    )
    project.change(
        project.path("test_output_fields.py"),
        '    "rawBody binary, _corrupt_record string"\n',
        '    "rawBody binary, storedQueueId int, _corrupt_record string"\n',
    )
    project.make_docs()
    assert "docs/write.md" in project.rows("storedQueueId")
    project.check(
        "test_columns.py",
        "test_output_fields.py",
        also=["tests/rmq_spark/produce/test_columns.py"],
    )


def test_add_a_view(tmp_path: Path) -> None:
    """The view `logFiles`: one row for each file of the commitlog."""
    project = Project(tmp_path, "Add a view", name="log_files")
    project.create(
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
    project.says("VIEWS")
    registry = project.path("views/registry.py")
    project.change(
        registry, "    lag_by_topic,\n    problems,\n", "    lag_by_topic,\n    log_files,\n    problems,\n"
    )
    project.change(registry, "    problems.VIEW,\n", "    problems.VIEW,\n    log_files.VIEW,\n")
    project.change(project.path("docs/read.md"), "**Views**", "**Views** (`logFiles`)")
    project.note_change()
    project.create(
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
    project.make_docs()
    assert len(project.rows("logFiles")) == 2
    hostile = project.path("views/test_hostile.py")  # takes half a minute with all views
    assert (tmp_path / hostile).exists()
    project.check("test_log_files.py", "views/test_registry.py", "test_overview_commands.py")


def test_add_a_kind_of_queue_file(tmp_path: Path) -> None:
    """The kind `wide`: a unit has four bytes more than one of a simple queue."""
    project = Project(tmp_path, "Add a kind of queue file", name="wide")
    project.says("FOLDERS", "LAYOUTS", "UnitRules", "RULES", "offset_at", "QueueSlice.read")
    files, units = project.path("consumequeue/files.py"), project.path("consumequeue/units.py")
    project.change(files, 'QueueKind = Literal["simple", ', 'QueueKind = Literal["simple", "wide", ')
    project.change(files, '"batch": "batchconsumequeue"}', '"batch": "batchconsumequeue", "wide": "wide"}')
    wide = 'LAYOUTS["wide"] = np.dtype([*CQ_UNIT.descr, ("more", ">i4")])\n'
    project.change(files, "_ROCKSDB_FOLDERS = ", f"{wide}_ROCKSDB_FOLDERS = ")
    project.change(
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
    project.change(
        units,
        "_batch_edges, _batch_entries),\n",
        '_batch_edges, _batch_entries),\n    "wide": UnitRules(valid_units, _wide_edges, _wide_entries),\n',
    )
    for end in ("offset_by_time.py", "unsupported.py"):
        assert (tmp_path / project.path(end)).exists()
    project.note_change()
    project.create(
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
    project.check("test_wide.py", also=["tests/store_format/consumequeue/test_slices_travel.py"])


def test_add_a_verb(tmp_path: Path) -> None:
    """`rmqlog names`: the names of the topics."""
    project = Project(tmp_path, "Add a verb to rmqlog", verb="names", module="overview")
    project.says("names_", "store_argument", "filter_options", "output_options", "FAMILIES")
    for end in ("cli/options.py", "cli/view_rows.py", "cli/output.py"):
        assert (tmp_path / project.path(end)).exists()
    project.append(
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
    project.change(
        project.path("cli/main.py"),
        '"ls": "overview", "du": "overview"}',
        '"ls": "overview", "du": "overview", "names": "overview"}',
    )
    project.note_change()
    tests = project.path("test_overview_commands.py")
    project.change(
        tests,
        "from store_format import MessageStore\n",
        "from rmq_spark.cli.exit_codes import NOT_FOUND\nfrom store_format import MessageStore\n",
    )
    project.append(
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
    project.make_docs()
    assert len(project.rows("names")) == 2
    project.says("EMPTY", "OTHERS")
    codes = project.path("test_exit_codes.py")
    project.change(codes, '    "ls": ("-q", 99),\n', '    "ls": ("-q", 99),\n    "names": ("-t", "None*"),\n')
    assert "The names of all topics." in project.run("-m", "rmq_spark.cli", "--help")
    project.check("test_overview_commands.py", "test_commands.py", "test_exit_codes.py")


def test_add_a_service(tmp_path: Path) -> None:
    """The service `audit`: copies each message of Jobs-0 to Audit-0."""
    project = Project(tmp_path, "Add a service", name="audit")
    project.says("StoredMessages", "MessageColumns", "ServicePlan", "Ledger.resume", "ServiceTurn")
    project.says("due", "changes", "next_due", "late_ms", "table()", "apply(session)")
    project.create("produce/audit.py", AUDIT_MESSAGES)
    produced, service = project.module("produce/audit.py"), project.module("services/service.py")
    project.create("services/audit.py", AUDIT_SERVICE.format(produced=produced, service=service))
    registry = project.path("services/turn.py")
    project.says("_BY_NAME", "NAMED_ONLY")
    row = f'    "audit": "{project.module("services/audit.py")}:Audit",\n'
    project.change(registry, '    "clean": ', f'{row}    "clean": ')
    docs = project.path("docs/services.md")
    project.change(docs, "| `flush` | writes", "| `audit` | copies messages of `Jobs` |\n| `flush` | writes")
    project.append("docs/services.md", "\n## Audit\n\nThe service `audit` copies messages.\n")
    project.note_change()
    project.create("services/test_audit.py", AUDIT_TEST)
    project.says("SCENARIOS", "_STATE_FILES")
    scenarios = project.path("service_scenarios.py")
    project.insert("service_scenarios.py", "SCENARIOS: dict[str, Scenario] = {", AUDIT_SCENARIO)
    project.change(
        scenarios,
        '    "clean": Scenario(',
        '    "audit": Scenario(_make_jobs, _run_audit, every=11),\n    "clean": Scenario(',
    )
    project.change(
        project.path("failing_service.py"), '    "timercheck",\n', '    "timercheck", "auditOffset.json",\n'
    )
    project.check("test_audit.py", also=["tests/rmq_spark/broker/services/test_turn.py"])
    project.run(*PYTEST, f"{project.path('test_crash.py')}::test_killed_at_many_changes[audit-torn]")


def test_change_a_text(tmp_path: Path) -> None:
    """The sentence of `minPartitions`: without a Chinese text it is shown in English and counted."""
    project = Project(tmp_path, "Add or change a text of the reference")
    table = "rmq_spark/options/read_options.py"
    old, new = (
        "The smallest number of partitions; queues are split for it.",
        "At least so many partitions; queues are split for it.",
    )
    project.change(table, f'"{old}"', f'"{new}"')
    texts = project.path("reference.zh-CN.txt")
    (pair,) = re.findall(
        rf"^{re.escape(old)}\n.*\n\n", (tmp_path / texts).read_text(encoding="utf-8"), re.MULTILINE
    )
    project.change(texts, pair, "")
    assert project.make_docs().endswith(f"texts without a translation, shown in English: 1\n{new}\n")
    pages = project.rows("minPartitions")
    assert project.path("docs/options.zh-CN.md") in pages
    assert len(pages) == 2
    assert all(row.endswith(f" | {new} |") for row in pages.values())
    project.check("test_chinese.py")
    project.append("reference.zh-CN.txt", f"\n{new}\n至少这么多分区；为此会拆分队列。\n")
    assert project.make_docs() == ""
    project.check("test_chinese.py")


def test_add_a_layout(tmp_path: Path) -> None:
    """The layout LEASE_UNIT, of 12 bytes."""
    project = Project(tmp_path, "Add a layout")
    project.says("LAYOUTS", "__all__")
    layouts = project.path("layouts.py")
    project.insert(
        "layouts.py",
        "# By name, for FORMAT.md",
        """LEASE_UNIT = unit(
    12,
    ("until", ">i8", 0, "ms, when the lease ends"),
    ("owner", ">i4", 8, "number of the owner"),
)

""",
    )
    project.change(
        layouts,
        '    "TIMER_CHECK": TIMER_CHECK,\n',
        '    "TIMER_CHECK": TIMER_CHECK,\n    "LEASE_UNIT": LEASE_UNIT,\n',
    )
    project.change(layouts, '    "MAGIC_BLANK",\n', '    "LEASE_UNIT",\n    "MAGIC_BLANK",\n')
    project.says("<!-- layout NAME -->", "<!-- end -->", "layouts.unpack", "layouts.pack")
    project.append("FORMAT.md", "\n<!-- layout LEASE_UNIT -->\n<!-- end -->\n")
    project.make_docs()
    assert "| 8 | 4 | int32 | `owner` | number of the owner |" in (
        tmp_path / project.path("FORMAT.md")
    ).read_text(encoding="utf-8")
    code = """from store_format import layouts
packed = layouts.pack(layouts.LEASE_UNIT, dict(until=[7], owner=[1])).tobytes()
print(len(packed), layouts.unpack(packed, layouts.LEASE_UNIT))"""
    assert project.run("-c", code) == "12 [(7, 1)]\n"
    project.check("test_format_tables.py")


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
from store_format.files.read import read_bytes
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
        began = json.loads(read_bytes(config_path(store.opened, _STATE)) or b"0")
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
