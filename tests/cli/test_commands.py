"""All commands together: each has a help text and a test of its own, help is made without the heavy imports,
completion knows the store.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rmq_spark.cli.completion import COMPLETE
from rmq_spark.cli.elsewhere import MQADMIN, OTHER_FILES, OURS
from rmq_spark.cli.main import COMMANDS, FAMILIES, main
from tests.support.cli_runs import ROOT, Runner, process
from tests.support.fixtures import Golden, Unchanged

STORE = "basic-5.5.0"
HEAVY = ("numpy", "pyarrow", "pyspark", "pandas", "importlib.metadata", "rmq_spark.options.option")


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_says_what_it_does(rmqlog: Runner, name: str) -> None:
    done = rmqlog(name, "--help")
    assert done.code == 0
    assert f"Usage: rmqlog {name} " in done.out
    overview = rmqlog("--help").out
    (line,) = [line for line in overview.splitlines() if line.startswith(f"  {name} ")]
    assert len(line.split()) > 3
    assert not line.endswith("...")
    usage, about = done.out.split("\n\n")[:2]
    assert " ".join(about.split()).startswith(line.split(maxsplit=1)[1]), usage
    tests = ROOT / "tests" / "cli" / f"test_{COMMANDS[name]}_commands.py"
    assert f'"{name}", ' in tests.read_text(encoding="utf-8")


def test_the_help_has_families_and_examples(rmqlog: Runner) -> None:
    lines = rmqlog("--help").out.splitlines()
    places = [lines.index(f"{heading}:") for heading in FAMILIES]
    assert places == sorted(places)
    for place, family in zip(places, FAMILIES.values(), strict=True):
        verbs = [line.split()[0] for line in lines[place + 1 : place + 1 + len(family)]]
        assert verbs == list(family)
    examples = [line.split() for line in lines if line.strip().startswith("rmqlog ")]
    assert {words[1] for words in examples} - {"COMMAND"} <= set(COMMANDS)
    assert max(map(len, lines)) <= 100
    assert rmqlog("help").out == rmqlog("--help").out
    assert rmqlog("help", "find").out == rmqlog("find", "--help").out


def test_version_is_a_word_too(rmqlog: Runner) -> None:
    asked = rmqlog("--version")
    assert rmqlog("version") == asked
    assert (asked.code, asked.err) == (0, "")
    assert asked.out.strip()
    assert "unknown command 'version'" in rmqlog.fails(2, "version", "now")


_MEANT = {
    "GROUP": "CG_some",
    "TOPIC": "Orders",
    "QUEUE": "2",
    "TIME": "-2h",
    "ID": "Orders/2@100",
    "KEY": "id-2003",
    "TOPIC/QUEUE@OFFSET": "Orders/2@100",
    "HOURS": "72",
    "TEXT": "order",
    "TAG": "TagA",
    "SQL92": "UNIQ_KEY IS NOT NULL",
    "OFFSET": "100",
}


@pytest.mark.parametrize("ours", sorted(set(OURS.values())))
def test_words_of_other_tools_lead_to_commands_that_work(
    rmqlog: Runner, golden: Golden, unchanged: Unchanged, ours: str
) -> None:
    meant = _MEANT | {"STORE": str(golden(STORE))}
    if ours == "dlq STORE":
        meant["STORE"] = str(golden("retry-dlq-5.5.0"))
    words = [meant.get(word, word) for word in ours.split() if word != "-f"]
    with unchanged(golden(STORE)):
        done = rmqlog(*words)
    assert (done.code, bool(done.out)) == (0, True) or "--members" in words, done.err


def test_words_of_other_tools_are_answered_in_a_line(rmqlog: Runner) -> None:
    assert not OURS.keys() & MQADMIN.keys() | (OURS.keys() | MQADMIN.keys()) & OTHER_FILES.keys()
    for words, advice in (
        (("consumerProgress", "-g", "CG"), "use rmqlog lag STORE --group CG"),
        (("consumerprogress",), "use rmqlog lag STORE --group GROUP"),
        (("help", "queryMsgByKey"), "use rmqlog find STORE KEY"),
        (("deleteTopic", "-t", "Orders"), "use rmqlog topic STORE Orders --delete"),
        (("updatetopic",), "use rmqlog topic STORE TOPIC"),
        (("updateSubGroup", "-g", "CG"), "use rmqlog group STORE CG"),
        (("updateTopicList",), "needs a running broker: mqadmin updateTopicList"),
        (("queryMsgByKey", "-t", "Orders", "-k", "A-1"), "use rmqlog find STORE A-1 --topic Orders"),
        (("queryMsgByOffset", "-t", "Orders", "-i", "2", "-o", "5"), "use rmqlog get STORE Orders/2@5"),
        (("queryMsgById", "-i", "7F00"), "use rmqlog get STORE 7F00"),
        (("queryMsgByKey", "-k", "$(reboot)"), "use rmqlog find STORE KEY"),
        (("consume",), "use rmqlog tail STORE -f --topic TOPIC"),
        (("tag",), "use rmqlog find STORE --tag TAG"),
        (("deadLetters",), "use rmqlog dlq STORE"),
        (("lagByTopic",), "use rmqlog info STORE --view lagByTopic"),
        (("dumpCompactionLog",), "rmqlog does not read these files: mqadmin dumpCompactionLog"),
    ):
        said = rmqlog.fails(2, *words)
        assert (
            said == f"unknown command {words[-1 if words[0] == 'help' else 0]!r}; {advice}; see rmqlog --help"
        )
    assert rmqlog.fails(2, "-C", "-b", "host") == (
        "no option -C; use rmqlog tail STORE -f --topic TOPIC; see rmqlog --help"
    )
    for typed, ours in (
        ("-t Orders -p 2 -o -5 -e", "tail STORE --topic Orders --queue 2 -n 5"),
        ("-t Orders -p 2 -o -5", "tail STORE -f --topic Orders --queue 2 -n 5"),
        ("-t Orders -o beginning -c 3", "head STORE --topic Orders -n 3"),
        ("-t Orders -p 1 -o 100", "head STORE --topic Orders --queue 1 --offset 100"),
    ):
        assert f"; use rmqlog {ours}; see" in rmqlog.fails(2, "-C", *typed.split())
    assert "needs a running broker: mqadmin sendMessage" in rmqlog.fails(2, "-P")
    assert "'Payload2'; the commands are info" in rmqlog.fails(2, "Payload2")


def test_a_word_that_is_near_to_no_command_gets_no_command(rmqlog: Runner) -> None:
    for word in ("taag", "schem", "ids"):
        said = rmqlog.fails(2, word)
        assert "did you mean" not in said
        assert "; the commands are info" in said
    for word, meant in (("hed", "head"), ("inof", "info"), ("vrify", "verify"), ("exprot", "export")):
        assert f"did you mean {meant}?" in rmqlog.fails(2, word)
    assert "a store has no schemas of bodies" in rmqlog.fails(2, "schema")


def test_a_store_in_the_place_of_a_command(rmqlog: Runner, tmp_path: Path) -> None:
    said = rmqlog.fails(2, tmp_path)
    assert f"; name a command before a store: rmqlog info {tmp_path}; see" in said


def test_rare_options_come_last(rmqlog: Runner) -> None:
    options = [line.split()[0] for line in rmqlog("head", "--help").out.splitlines() if "  -" in line]
    assert options[-3:] == ["--commitlog", "--broker-name", "-h,"]


def test_without_a_command_the_help_is_shown(rmqlog: Runner) -> None:
    bare, asked = rmqlog(), rmqlog("--help")
    assert (bare.code, bare.out, bare.err) == (0, asked.out, "")
    assert bare.out.startswith("Usage: rmqlog ")
    assert len(bare.out.splitlines()) > len(COMMANDS)


@pytest.mark.parametrize("arguments", [["--help"], ["export", "--help"], ["ls"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    code = f"""
import sys
from rmq_spark.cli.main import main
main({arguments!r})
print(*(name for name in {HEAVY!r} if name in sys.modules), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stderr.splitlines()[-1] == ""


@pytest.mark.process
def test_a_process_of_its_own_needs_no_pandas(golden: Golden) -> None:
    code = f"""
import sys
from rmq_spark.cli.main import begin, leave, main
begin()
code = main(["ls", {str(golden(STORE))!r}])
print("pandas" in sys.modules)
leave(code)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.endswith("\nFalse\n")
    assert "Orders" in done.stdout


def _completing(words: str, number: int) -> dict[str, str]:
    """What the script of a shell sets: it completes the word with this number."""
    return {COMPLETE: "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(number)}


def _offered(out: str) -> list[str]:
    return [line.partition(",")[2] for line in out.splitlines() if line]


@pytest.fixture
def complete(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, int], list[str]]:
    """What `rmqlog` offers a shell, run in this process."""

    def run(words: str, number: int) -> list[str]:
        for name, value in _completing(words, number).items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit):
            main()
        return _offered(capsys.readouterr().out)

    return run


@pytest.mark.process
def test_topics_and_groups_are_completed_from_the_store(
    complete: Callable[[str, int], list[str]], golden: Golden, tmp_path: Path
) -> None:
    for verb, words, found in (
        ("ls", "--topic Or", ["Orders"]),
        ("lag", "--group CG_t", ["CG_tags", "CG_tags2"]),
        ("offsets", "CG_s", ["CG_some"]),
        ("head", "--columns queue", ["queueId", "queueOffset"]),
        ("head", "--columns topic,queueId,queue", ["topic,queueId,queueOffset"]),
        ("dlq", "--columns origin", ["originMsgId", "originTopic"]),
        ("lag", "--columns lagM", ["lagMessages", "lagMs"]),
        ("lag", "--columns group,q", ["group,queueId", "group,queues"]),
        ("info", "--view dead", ["deadLetters"]),
        ("diff", "--columns copies", ["copiesA", "copiesB"]),
    ):
        assert complete(f"rmqlog {verb} {golden(STORE)} {words}", 2 + len(words.split())) == found
    assert complete("rmqlog d", 1) == ["du", "diff", "dlq", "delay", "dump", "doctor"]
    assert complete(f"rmqlog ls {tmp_path / 'nowhere'} --topic O", 4) == []


def test_names_that_a_shell_would_run_are_not_offered(tmp_path: Path) -> None:
    for topic in ("good", "go$(reboot)", "go;ls", "go\x1b[2J"):
        (tmp_path / "store" / "consumequeue" / topic / "0").mkdir(parents=True)
    (tmp_path / "store" / "commitlog").mkdir()
    assert _offered(process(**_completing(f"rmqlog ls {tmp_path / 'store'} --topic go", 4)).out) == ["good"]
