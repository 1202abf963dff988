"""`rmqlog`: the commands, and how a run begins and ends. A command's module is imported when it is called.

Settings shorten a run of a few tenths of a second. Measured as CPU time of `rmqlog get` on the golden store
basic-5.5.0, of 0.32 s in all: with pandas, where it is installed, 0.12 s more; with Python's default garbage
collection 0.02 s; with an orderly end of the interpreter 0.03 s; with threads for numpy's linear algebra,
which no command uses, 0.11 s.
"""

from __future__ import annotations

import gc
import importlib
import io
import logging
import os
import re
import shlex
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib.machinery import ModuleSpec
from typing import NoReturn

import click

from rmq_spark.cli.completion import COMPLETE, VARIABLE, with_default_store
from rmq_spark.cli.exit_codes import (
    BUG,
    DAMAGE,
    EXIT_CODES,
    IN_USE,
    INTERRUPTED,
    IO,
    NOT_FOUND,
    OK,
    USAGE,
)
from rmq_spark.cli.output_file import forget_output
from rmq_spark.cli.remarks import WORDS, remark, terminal_columns, with_given_store, wrapped
from rmq_spark.cli.repeated import refuse_given_twice
from store_format.display.text import first_names, shown
from store_format.errors import (
    CorruptStoreError,
    OffsetOutOfRangeError,
    StoreError,
    StoreInUseError,
    StoreNotFoundError,
    StorePermissionError,
    StoreUnreachableError,
    StoreWriteError,
)

# The headings of --help -> command -> its module in rmq_spark.cli.commands, and the first line of its own
# help, because `rmqlog --help` imports no command. The function of a command has its name and an underscore.
FAMILIES: dict[str, dict[str, tuple[str, str]]] = {
    "Store": {
        "info": ("overview", "Summary of a store: broker, state, files, topics, messages."),
        "ls": ("overview", "Topics, or queues with -l: messages, bytes, times."),
        "du": ("overview", "Disk usage: bytes by topic or day."),
    },
    "Messages": {
        "head": ("messages", "The first messages."),
        "tail": ("messages", "The last messages; with -f also new ones."),
        "get": ("messages", "One message by its id, or by topic, queue and offset."),
        "find": ("messages", "Messages by key, id, tag, time, body or condition."),
        "trace": ("trace", "The life of a message as a timeline."),
        "export": ("export", "Write messages to a Parquet, JSONL or CSV file of any size."),
        "diff": ("diff", "The messages in which two stores differ."),
    },
    "Consumer groups": {
        "lag": ("lag", "Consumer lag: which group is behind, and what it loses next."),
        "retention": ("retention", "What a broker deletes next, and who loses unread messages."),
        "groups": ("groups", "Consumer groups: settings, topics, lag, dead letters; members."),
        "offsets": ("groups", "Show, reset or copy the offsets of groups."),
    },
    "Messages that wait": {
        "dlq": ("waiting", "Dead letters; with --resend, store them again."),
        "delay": ("waiting", "Delayed messages that wait for delivery."),
        "half": ("waiting", "Half messages of transactions; commit or roll back."),
    },
    "Monitoring": {
        "metrics": ("metrics", "Metrics for Prometheus: lag, age, losses, disk, damage."),
        "check": ("check", "One line for Nagios and Icinga: do groups keep their limits?"),
    },
    "Damage": {
        "verify": ("verify", "Check all files of a store, and account for every byte."),
        "report": ("report", "May a broker start? What is gone, and whom does it affect?"),
        "dump": ("dump", "Show one record as annotated hex."),
        "recover": ("recover", "Recover a store; rebuild lost queues and index."),
    },
    "Work of a broker": {
        "topic": ("administer", "Show, create, change or delete a topic."),
        "group": ("administer", "Show, create, change or delete a group."),
        "services": ("services", "Deliver what is due, flush and clean, as a broker does."),
        "clean": ("clean", "Delete the oldest files, as a broker does."),
    },
    "This installation": {
        "doctor": ("doctor", "Check whether Spark finds the format rmqlog."),
        "completion": ("completion", "Print the script that completes commands, topics and groups."),
    },
}
COMMANDS: dict[str, str] = {
    verb: module for family in FAMILIES.values() for verb, (module, _) in family.items()
}

_EXAMPLES = """
Examples:
  rmqlog info /data/store                    what is in this store?
  rmqlog lag /data/store                     which group lags?
  rmqlog retention /data/store               who loses unread messages next?
  rmqlog find /data/store order-1234         where is this key or id?
  rmqlog trace /data/store --key order-1234  what happened to it?
  rmqlog get /data/store Orders/2@100        topic Orders, queue 2, offset 100
  rmqlog tail -f /data/store --topic Orders  new messages as they come
  rmqlog diff /data/store /backup/store      are all messages there?
  rmqlog verify /data/store                  is a file damaged?

rmqlog COMMAND --help shows the options and more examples.
"""

_DEBUG = "RMQLOG_DEBUG"
_FS = "RMQLOG_FS_"  # and the name of an option of object storage, such as RMQLOG_FS_ENDPOINT
_ROOMS = ("rmq_spark", "store_format")

_CODES: tuple[tuple[type[BaseException], int], ...] = (
    (StoreNotFoundError, NOT_FOUND),
    (OffsetOutOfRangeError, NOT_FOUND),
    (CorruptStoreError, DAMAGE),
    (StoreInUseError, IN_USE),
    (StoreWriteError, IO),
    (StorePermissionError, IO),
    (StoreUnreachableError, IO),
    (StoreError, USAGE),
    (OSError, IO),
)
_WORDS = ("id", "word", "place")  # arguments that name messages

_PARTITION = ("-p", "--partition")  # of kcat and rpk
_KCAT = ("-C", "-L", "-P", "-Q")  # kcat's modes, which are no options of rmqlog

_NEAR_COMMAND_MIN = 0.7  # of difflib: `hed` is head and `inof` is info, but `tag` is not lag

_GARBAGE_THRESHOLD = 200_000  # objects; the imports alone make 150,000, and none of them is garbage


class _Commands(click.Group):
    """The commands by name, each imported when click asks for it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"rmq_spark.cli.commands.{COMMANDS[cmd_name]}")
        command = getattr(module, f"{cmd_name}_")
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from rmq_spark.cli.elsewhere import advice_for  # only errors need it

            advice = advice_for(args) or _near_command(args[0])
            if os.path.isdir(args[0]):
                advice = f"name a command before a store: rmqlog info {shlex.quote(args[0])}"
            raise click.UsageError(f"unknown command {args[0]!r}; {advice}", ctx)
        name, command, words = super().resolve_command(ctx, args)
        if command is not None:
            words = with_default_store(ctx, command, words)
            if not ctx.resilient_parsing:
                refuse_given_twice(ctx, command, words)
        ctx.meta[WORDS] = [str(name), *words]
        return name, command, words

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes one section per family; the texts of all sections begin in the same column."""
        longest = max(map(len, COMMANDS))
        limit = formatter.width - longest - 6
        for heading, family in FAMILIES.items():
            rows = [
                (verb.ljust(longest), click.Command(verb, help=about).get_short_help_str(limit))
                for verb, (_, about) in family.items()
            ]
            with formatter.section(heading):
                formatter.write_dl(rows)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the examples line by line, and the exit codes."""
        formatter.write(_EXAMPLES)
        codes = ", ".join(f"{code} {words}" for code, words, _ in EXIT_CODES)
        formatter.write_paragraph()
        formatter.write_text(f"Exit codes: {codes}.")


def _say_version(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if not value or context.resilient_parsing:
        return
    from importlib.metadata import PackageNotFoundError, version

    try:
        click.echo(version("rmqlog"))
    except PackageNotFoundError:
        click.echo("unknown: this checkout is not installed")
    context.exit()


@click.group(
    cls=_Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_say_version,
    help="Show the version and exit.",
)
@click.pass_context
def cli(context: click.Context) -> None:
    """Read the store directory of a RocketMQ broker: running, stopped, crashed, or a copy.

    STORE is the store directory; the environment variable RMQLOG_STORE is used where it is left out.
    Only commands with --apply change a store. Data goes to stdout, remarks to stderr.
    """
    if context.invoked_subcommand is None:  # click's no_args_is_help raises an error from 8.2 on
        click.echo(context.get_help())


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command line and returns the exit code. Prints expected errors as one line on stderr."""
    context: click.Context | None = None
    try:
        if COMPLETE in os.environ:
            cli.main(prog_name="rmqlog")  # a shell asks for completions; this call does not return
        if any(name.startswith(_FS) for name in os.environ):
            _reach_by_environment()
        words = list(sys.argv[1:] if arguments is None else arguments)
        if words[:1] == ["help"]:
            words = [*words[1:2], "--help"]
        elif words == ["version"]:
            words = ["--version"]
        elif words and words[0] in _KCAT:
            from rmq_spark.cli.elsewhere import advice_for

            raise click.UsageError(
                f"no option {words[0]}; {advice_for(words)}", click.Context(cli, info_name="rmqlog")
            )
        # Not cli.main, which exits with 1 at a closed pipe.
        with cli.make_context("rmqlog", words) as context:
            code = cli.invoke(context)
        sys.stdout.flush()
        return code if isinstance(code, int) else OK
    except click.UsageError as error:
        text = with_given_store(shown(_usage(error)).removesuffix("."), context)
        see = " See" if text.endswith("?") else "; see"
        _say(text + (f"{see} {error.ctx.command_path} --help" if error.ctx is not None else ""))
        return USAGE
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.ClickException as error:
        _say(shown(error.format_message()))
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        _say("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        forget_output()
        return OK
    except (StoreError, OSError) as error:
        _say(with_given_store(shown(_sentence(error)), context))
        return next(code for kind, code in _CODES if isinstance(error, kind))
    except Exception as error:
        if os.environ.get(_DEBUG):
            raise
        for line in _bug(error):
            _say(line)
        return BUG


def _near_command(word: str) -> str:
    """The command or view that a word misspells, else the list of commands.

    Commands are short: half of the letters of another word are often those of a command.
    """
    from difflib import SequenceMatcher

    from store_format.names import advice_of, nearest

    near = nearest(word, COMMANDS)
    if near is not None and SequenceMatcher(None, near, word.lower()).ratio() >= _NEAR_COMMAND_MIN:
        return advice_of(near)
    from store_format.views.registry import VIEWS

    plain = word.lower().replace("-", "").replace("_", "")
    view = next((each.name for each in VIEWS if each.name.lower() == plain), None)
    if view is not None:
        return f"use rmqlog info STORE --view {view}"
    return f"the commands are {first_names(COMMANDS, len(COMMANDS))}"


def _reach_by_environment() -> None:
    from rmq_spark.options.access_options import access_of_environment
    from store_format.files.read import places

    access = access_of_environment(os.environ)
    if access is not None:
        places().set_access("", access)


def _bug(error: Exception) -> list[str]:
    """What a user can report of an error that only a fault of rmqlog explains."""
    frames = [
        (room, frame.filename.rpartition(room)[2], frame.lineno)
        for frame in traceback.extract_tb(error.__traceback__)
        for room in _ROOMS
        if f"{os.sep}{room}{os.sep}" in frame.filename
    ]
    room, path, line = frames[-1]  # the first is `main`
    what = shown(f"{type(error).__name__}: {error}")
    return [
        f"this is a bug of rmqlog: {what} ({room}{path}, line {line})",
        f"please report the command, the line above, and the output of rmqlog doctor; {_DEBUG}=1 shows more",
    ]


def _usage(error: click.UsageError) -> str:
    if isinstance(error, click.MissingParameter) and error.param is not None and error.param.name == "store":
        return f"STORE is missing: give the store directory, or set {VARIABLE}"
    text = error.format_message()
    if isinstance(error, click.NoSuchOption) and error.ctx is not None:
        queues = [each for each in error.ctx.command.params if each.name == "queue_ids"]
        if error.option_name in _PARTITION and queues:
            return f"no option {error.option_name}; a partition is a queue in RocketMQ: -q, --queue"
    extra = re.fullmatch(r"Got unexpected extra arguments? \((.+)\)", text)
    if extra is None or error.ctx is None:
        return text
    hint = _hint_of_extra(extra[1], error.ctx.command, str(error.ctx.params.get("id")))
    return f"{text}; {hint}" if hint else text


def _hint_of_extra(extra: str, command: click.Command, first: str) -> str:
    """What a user meant with words behind the arguments of a command; "" if nobody can tell. `first` is the
    word for the argument ID.
    """
    from rmq_spark.cli.address import parse_address

    given = {each.opts[-1].lstrip("-"): each for each in command.params}
    words = [name for name, each in given.items() if isinstance(each, click.Argument) and name != "store"]
    if command.name == "trace":  # --key takes the ids of clients, too
        several = [shlex.quote(each) for each in (first, *extra.split())]
        if any(parse_address(each) is not None for each in (first, *extra.split())):
            return f"one command for each: {'; '.join(f'rmqlog trace STORE {each}' for each in several)}"
        return f"for several, write {' '.join(f'-k {each}' for each in several)}"
    if words and words[0] in _WORDS:
        return f"rmqlog {command.name} takes one {words[0].upper()}, call it for each"
    if command.name == "export":
        if re.search(r"\.[a-z]+$", extra):  # a file: the word before it is no OUT
            return ""
        return f"write {' '.join(f'-k {shlex.quote(key)}' for key in extra.split())}"
    if (words and words[0] != "group") or " " in extra:
        return ""
    queue = re.fullmatch(r"([^/@]+)/([0-9]{1,9})(?:@last)?", extra)
    if queue is not None and "queue" in given:
        last = " -n 1" * extra.endswith("@last")
        return f"write --topic {shlex.quote(queue[1])} --queue {queue[2]}{last}"
    address = parse_address(extra)
    if address is not None and "offset" in given and address.offset >= 0:
        place = f"--queue {address.queue_id} --offset {address.offset}"
        return f"write --topic {shlex.quote(address.topic)} {place}"
    if address is not None:
        return f"rmqlog get STORE {shlex.quote(extra)} shows this message"
    options = [f"--{name} {shlex.quote(extra)}" for name in ("topic", "group") if name in given]
    return f"write {' or '.join(options)}" if options else ""


def _sentence(error: StoreError | OSError) -> str:
    """The text of an error; without the errno of an error of the system."""
    if isinstance(error, StoreError) or error.filename is None or error.strerror is None:
        return str(error)
    return f"{os.fsdecode(error.filename)}: {error.strerror}"


def _say(sentence: str) -> None:
    try:
        sys.stdout.flush()
        remark(sentence)
    except OSError:  # the reader of the output is gone
        forget_output()


class Remarks(logging.Formatter):
    """Log records as lines of stderr, wrapped on a terminal; without control characters of a store."""

    def format(self, record: logging.LogRecord) -> str:
        line = f"rmqlog: {record.levelname.lower()}: {shown(record.getMessage())}"
        return wrapped(line, terminal_columns(sys.stderr))


def run() -> NoReturn:
    """Runs the process: settings that `main` must not change in a test or a notebook."""
    begin()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # a character that the terminal cannot encode must not end the run
        sys.stdout.reconfigure(errors="backslashreplace")
    handler = logging.StreamHandler()
    handler.setFormatter(Remarks())
    logging.getLogger().addHandler(handler)
    leave(main())


# ---- how a process begins and ends -------------------------------------------------------------------------


class _RefusePandas:
    """An import hook that reports pandas as not installed.

    pyarrow imports pandas when it makes its first scalar or array, to recognise pandas' types, and has no
    setting against this. No command passes pandas objects to pyarrow.
    """

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name == "pandas":
            raise ModuleNotFoundError("rmqlog does not use pandas", name=name)
        return None


def begin() -> None:
    """Call this before numpy and pyarrow are imported, only in a process that runs nothing but `rmqlog`."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    gc.set_threshold(_GARBAGE_THRESHOLD)
    sys.meta_path.insert(0, _RefusePandas)


def leave(code: int) -> NoReturn:
    """Flushes the output and ends the process at once: nothing else has to be cleaned up."""
    logging.shutdown()
    with suppress(OSError):  # the reader of the output is gone
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
