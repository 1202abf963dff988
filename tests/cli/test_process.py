"""Runs as processes of their own: exit codes, a closed pipe, Ctrl-C, and a real terminal for colour and
progress.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from store_format import MessageStore
from store_format.commit.options import CommitOptions
from store_format.message.encode import MessageColumns
from tests.support.cli_runs import command, environment, process
from tests.support.fixtures import Golden

pytestmark = pytest.mark.slow

STORE = "basic-5.5.0"


@pytest.mark.process
def test_exit_codes(golden: Golden, tmp_path: Path) -> None:
    assert process("ls", golden(STORE)).code == 0
    assert process("ls").code == 2
    unknown = process("lss", golden(STORE)).err
    assert unknown == "rmqlog: unknown command 'lss'; did you mean ls? See rmqlog --help\n"
    missing = process("get", golden(STORE), "nobody")
    assert (missing.code, missing.out) == (1, "")
    full = process("export", golden(STORE), tmp_path / "no" / "a.csv")
    assert (full.code, full.err.count("\n")) == (5, 1)
    assert process("--help").code == process("export", "--help").code == process("--version").code == 0


@pytest.mark.process
def test_a_closed_pipe_is_no_error(golden: Golden) -> None:
    for form in ("jsonl", "csv", "table", "raw"):
        arguments = command("find", golden(STORE), "--topic", "*", "-o", form)
        with subprocess.Popen(
            arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
        ) as run:
            assert run.stdout is not None
            assert run.stderr is not None
            assert run.stdout.read(10)
            run.stdout.close()
            said = run.stderr.read().decode()
            assert run.wait(30) == 0, said
        assert "Traceback" not in said
        assert "BrokenPipe" not in said


@pytest.mark.process
@pytest.mark.parametrize("form", ["table", "json", "jsonl"])
def test_each_form_keeps_the_letters_that_the_output_can_show(golden: Golden, form: str) -> None:
    words = ("find", golden(STORE), "--tag", "标签", "-n", "1", "--columns", "tags", "-o", form)
    for encoding, spelled in (("utf-8", "标签"), ("ascii", r"\u6807\u7b7e")):
        done = process(*words, PYTHONIOENCODING=encoding, PYTHONUTF8="0")
        assert (done.code, spelled in done.out) == (0, True), done.err
        assert form == "table" or json.loads(done.out) in ({"tags": "标签"}, [{"tags": "标签"}])


# ---- a terminal --------------------------------------------------------------------------------------------


# A process that has one thread, as forking wants it: it gives its child a terminal and passes on what goes
# through.
_HOST = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"


def _terminal(*arguments: object, interrupt_at: bytes = b"", **more: str) -> tuple[int, str]:
    """(exit code, all that a terminal was sent) of a run with a terminal for all three; Ctrl-C is typed when
    `interrupt_at` is seen.
    """
    variables = {name: value for name, value in environment().items() if name != "NO_COLOR"}
    variables |= {"TERM": "xterm", "COLUMNS": "100", **more}
    host = [sys.executable, "-c", _HOST, *command(*arguments)]
    with subprocess.Popen(host, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=variables) as terminal:
        assert terminal.stdin is not None
        assert terminal.stdout is not None
        seen, typed = b"", False
        while part := os.read(terminal.stdout.fileno(), 4096):
            seen += part
            if interrupt_at and not typed and interrupt_at in seen:
                os.write(terminal.stdin.fileno(), b"\x03")
                typed = True
        return terminal.wait(60), seen.decode("utf-8", "replace")


@pytest.mark.process
def test_colour_on_a_terminal_alone_and_not_with_no_color(golden: Golden) -> None:
    code, seen = _terminal("ls", golden(STORE))
    assert code == 0
    assert "\n\x1b[1mtopic " in seen
    table = [line for line in seen.splitlines()[2:] if not line.startswith("rmqlog: ")]
    assert max(map(len, table)) <= 100
    assert "\x1b" not in _terminal("ls", golden(STORE), NO_COLOR="1")[1]
    assert "\x1b" not in process("ls", golden(STORE), TERM="xterm").out


@pytest.mark.process
def test_raw_bodies_are_spelled_out_on_a_terminal(golden: Golden) -> None:
    code, seen = _terminal("head", golden(STORE), "-n", "1", "-o", "raw")
    assert code == 0
    assert r"\xdf&" in seen
    code, seen = _terminal("head", golden(STORE), "-n", "1", "-o", "csv", "--body", "text")
    assert all(char.isprintable() or char in "\r\n" for char in seen)


def _alike(root: Path, topic: str, body: bytes, properties: bytes, count: int, *, index: bool = True) -> Path:
    """A store of that many equal messages."""
    store = MessageStore.create(str(root), mapped_file_size_commit_log=16 << 20)
    bodies, texts = pa.array([body] * count), pa.array([properties] * count)
    columns = MessageColumns(topic=topic, body=bodies, properties=texts)
    options = CommitOptions(sync=False, message_index_enable=index)
    store.append(columns, store_timestamps=1, options=options)
    return root


@pytest.fixture(scope="module")
def long_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seconds of work for an export to JSON."""
    return _alike(tmp_path_factory.mktemp("long") / "s", "Long", b"x" * 100, b"TAGS\x01a\x02", 60_000)


_LINE = re.compile(r"export: [0-9.]+ [KM]?i?B of 12 MiB \(\d+ %\), [0-9.]+ [KM]?i?B/s, \d+ s left")


@pytest.mark.process
def test_progress_goes_on_and_goes_away(long_store: Path, tmp_path: Path) -> None:
    code, seen = _terminal("export", long_store, tmp_path / "a.jsonl")
    assert code == 0
    assert len(_LINE.findall(seen)) >= 2
    assert seen.rpartition("\x1b[K")[2].startswith("rmqlog: 60,000 messages, 12 MiB ")
    quiet = process("export", long_store, tmp_path / "b.jsonl")
    assert quiet.err.startswith("rmqlog: 60,000 messages")
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()


@pytest.fixture(scope="module")
def alike_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Half a second of work for a scan: all of its messages have the same key."""
    root, key = tmp_path_factory.mktemp("alike") / "s", b"KEYS\x01same\x02"
    return _alike(root, "Alike", b"x", key, 400_000, index=False)


@pytest.mark.process
def test_a_scan_shows_how_far_it_is(alike_store: Path) -> None:
    code, seen = _terminal("find", alike_store, "--key", "same", "-n", "1")
    assert code == 0
    line = r"find: [0-9.]+ [KM]iB of \d+(\.\d)? MiB \(\d+ %\), [0-9.]+ [KM]?i?B/s, \d+ s left"
    assert re.search(line, seen)
    assert "rmqlog: 400000 found by scan" in seen.rpartition("\x1b[K")[2]
    assert process("find", alike_store, "--key", "same", "-n", "1").err.startswith(
        "rmqlog: 400000 found by scan"
    )


@pytest.mark.process
def test_ctrl_c_ends_an_export_and_leaves_nothing(long_store: Path, tmp_path: Path) -> None:
    code, seen = _terminal("export", long_store, tmp_path / "a.jsonl", interrupt_at=b" %)")
    assert code == 130
    assert seen.endswith("\x1b[Krmqlog: interrupted\r\n")
    assert list(tmp_path.iterdir()) == []


def test_a_signal_ends_a_tail(long_store: Path) -> None:
    arguments = command("tail", "-f", long_store)
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    ) as run:
        assert run.stdout is not None
        run.stdout.readline()
        run.send_signal(signal.SIGINT)
        assert run.wait(30) == 130
        assert run.stderr is not None
        assert run.stderr.read() == b"rmqlog: interrupted\n"
