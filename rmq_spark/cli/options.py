"""Arguments and options that several commands share: STORE, `--now`, the filters of messages.

A start is inclusive and an end exclusive, as in the options of the DataFrame. Without `--topic`, system
topics are left out.
"""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import click

from rmq_spark.cli.completion import VARIABLE, complete_topic
from rmq_spark.cli.exit_codes import NOT_FOUND, OK, PARTIAL, NotFoundError
from rmq_spark.cli.remarks import given_store, remark, remember_store
from rmq_spark.cli.repeated import choice_of_topics, globs_of
from rmq_spark.cli.tiered import Tiered
from store_format.display.text import first_names, shown
from store_format.errors import OptionError, StoreError
from store_format.files import paths
from store_format.names import did_you_mean
from store_format.read.choice import BodyFilter, MessageChoice

if TYPE_CHECKING:
    from collections.abc import Iterable

    from store_format import MessageStore
    from store_format.message.columns import PropertyFilter
    from store_format.metadata.broker_confs import BrokerConfs
    from store_format.survey.fates import Unfiled


Command = Callable[..., Any]  # Any: click calls a command with the values of its options as keywords

MESSAGE_FILTERS = ("topics", "all", "queue", "tag", "key", "since", "until", "where", "limit")
HEAD_FILTERS = (*MESSAGE_FILTERS[:-1], "count")  # -n 0 is allowed
KEYLESS_FILTERS = tuple(name for name in MESSAGE_FILTERS if name != "key")  # beside `keys_option`
_NO_STORES_MAX = 5  # that a remark names
_PATH = click.Path(readable=False)  # click would report an unreadable path as wrong usage


# ---- the store ---------------------------------------------------------------------------------------------


def store_argument(*, opened: bool = True, tolerant: bool = False) -> Callable[[Command], Command]:
    """The argument STORE, with `--commitlog` and `--broker-name`.

    The command gets the open `stores`, or with `opened=False` the store roots as `roots`. With `tolerant`, it
    also gets `left_out`, the errors of members of a cluster that are not among the roots.
    """

    def decorate(command: Command) -> Command:
        def called(store: str, commit_log: tuple[str, ...], broker_name: str | None, **others: Any) -> Any:
            _refuse_word_for_store(store, others)
            if opened:
                unfiled, compacted = others.pop("unfiled_queues"), not others.pop("no_compacted")
                tiered = Tiered(others.pop("tiered"), others.get("broker_conf", ()))
                stores = open_all(store, broker_name, commit_log, unfiled, compacted=compacted, tiered=tiered)
                code = command(stores=stores, **others)
                is_whole = not any(each.unreadable for each in stores)
                return PARTIAL if code in (None, OK, NOT_FOUND) and not is_whole else code
            if tolerant:
                others["left_out"] = left_out = list[StoreError]()
            return command(
                roots=open_roots(store, commit_log, left_out if tolerant else None),
                commit_log_paths=tuple(map(paths.given, commit_log)),
                **others,
            )

        called = standing_for(command, called)
        called = click.argument("store", type=_PATH, callback=remember_store)(called)
        # click reverses this list: --help shows the rare options last
        called.__click_params__[:0] = _rare_options()[: 5 if opened else 2]  # type: ignore[attr-defined] # click's attribute
        return called

    return decorate


def _refuse_word_for_store(store: str, others: dict[str, Any]) -> None:
    """Raises UsageError for `find A-17`: a word that is no path, and no other word behind it."""
    words = [name for name in ("words", "id") if name in others]
    if not words or any(others[name] for name in words) or os.path.lexists(store):
        return
    if "/" not in store and not store.startswith((".", "~")):
        raise click.UsageError(
            f"STORE is missing before {store!r}: give the store directory, or set {VARIABLE}"
        )


def store_path_argument(command: Command) -> Command:
    """The argument STORE for a command that opens the stores itself, as `path`, `commit_log_paths` and
    `broker_name`. The path is absolute; it may lead nowhere.
    """

    def called(store: str, commit_log: tuple[str, ...], **others: Any) -> Any:
        logs = tuple(map(paths.given, commit_log))
        return command(path=paths.given(store), commit_log_paths=logs, **others)

    called = click.argument("store", type=_PATH, callback=remember_store)(standing_for(command, called))
    called.__click_params__[:0] = _rare_options()[:2]  # type: ignore[attr-defined] # click's attribute
    return called


def _rare_options() -> list[click.Option]:
    about = "Directory of commitlog files outside STORE (storePathCommitLog); repeatable."
    log = click.Option(["--commitlog", "commit_log"], type=_PATH, multiple=True, metavar="PATH", help=about)
    name = click.Option(
        ["--broker-name"], metavar="NAME", help="The broker's name, if the store does not contain it."
    )
    about = (
        "Messages without a consume queue, if nothing shows why: read them (the queue was lost), or "
        "skip them (the topic was deleted and created again)."
    )
    unfiled = click.Option(["--unfiled-queues"], type=click.Choice(["read", "skip"]), help=about)
    about = "Of compacted topics, show the messages of the commitlog, not those that consumers get."
    compacted = click.Option(["--no-compacted"], is_flag=True, help=about)
    about = "Directory of tiered storage in files (tieredStoreFilePath); by default that of the broker.conf."
    return [name, log, unfiled, compacted, click.Option(["--tiered"], type=_PATH, metavar="PATH", help=about)]


def open_roots(
    path: str, commit_log: tuple[str, ...] = (), left_out: list[StoreError] | None = None
) -> list[str]:
    """The store roots of a path; the path itself if it has none: opening it then reports what is missing.

    Members of a cluster that cannot be read, or have no commitlog, are added to `left_out`. Without
    `left_out` they are an error.
    """
    from store_format.files.paths import refuse
    from store_format.read.store_root import store_roots

    root = paths.given(path)
    return [root] if commit_log else store_roots(root, refuse if left_out is None else left_out.append)


def open_all(
    path: str,
    broker_name: str | None = None,
    commit_log: tuple[str, ...] = (),
    unfiled_queues: Unfiled | None = None,
    *,
    compacted: bool = True,
    tiered: Tiered | None = None,
) -> list[MessageStore]:
    """The open stores of a path. Leaves unreadable members and files out, with a warning.

    Raises StoreNotFoundError if the path has no store, and OptionError if two stores belong to one broker.
    """
    from store_format import MessageStore
    from store_format.read.store_root import refuse_equal_names

    left_out: list[StoreError] = []
    roots = open_roots(path, commit_log, left_out)
    if len(roots) > 1 and broker_name is not None:
        raise OptionError(
            f"--broker-name is for one store, but {path} is a cluster of {len(roots)} stores; "
            "leave it out, each store has its own name"
        )
    logs = tuple(map(paths.given, commit_log))
    tiered_paths = (tiered or Tiered()).paths(roots, broker_name)
    stores = [
        MessageStore.open(
            root,
            broker_name=broker_name,
            commit_log_paths=logs,
            skip_unreadable=True,
            unfiled_queues=unfiled_queues,
            compacted=compacted,
            tiered_path=tiered_paths.get(root),
        )
        for root in roots
    ]
    refuse_equal_names((store.broker_name, store.path) for store in stores)
    stores[0].pass_over(left_out, cluster=path)
    if not commit_log:
        _say_what_is_no_store(path)
    return stores


def _say_what_is_no_store(path: str) -> None:
    from store_format.read.store_root import members_without_store

    found = [str(each) for each in members_without_store(paths.given(path))]
    if found:
        more = f"; and {len(found) - _NO_STORES_MAX} more" if len(found) > _NO_STORES_MAX else ""
        remark(f"left out: {'; '.join(found[:_NO_STORES_MAX])}{more}")


def known_topics(stores: Iterable[MessageStore]) -> set[str]:
    """The topics of the stores: with queues, or only configured."""
    return {topic for store in stores for topic in {*store.topics(), *store.configured_topics()}}


def say_what_an_old_bak_lacks(stores: Iterable[MessageStore]) -> None:
    """Says where only the `.bak` of topics.json can be read: a topic that was created since is unknown
    without queue files, and its messages are in no row.
    """
    from store_format.metadata.read import known_topics as configured_topics

    for store in stores:
        topics = configured_topics(store.opened)
        if topics is not None and topics.is_backup:
            remark(
                "topics.json cannot be read, and its .bak may lack topics: messages of a topic that has no "
                "queue files either are left out here; to count them: rmqlog verify "
                f"{given_store(store.path)}"
            )


def say_compacted(stores: Iterable[MessageStore]) -> None:
    """Names the topics that are read from `compaction/`, whose messages are not all that the log has."""
    from store_format.display.text import first_names

    for store in stores:
        if names := store.compacted_topics:
            remark(
                f"cleanup.policy=COMPACTION: {first_names(sorted(names))}: what consumers get, from "
                "compaction/; with --no-compacted what the commitlog has"
            )


# ---- options of some commands ------------------------------------------------------------------------------


def from_one_look(command: Command) -> Command:
    """The whole command is one look at the stores: it reads no small file twice. For a command that ends."""

    def called(**given: Any) -> Any:
        from store_format.files.read import one_look  # `rmqlog --help` needs none of it

        with one_look():
            return command(**given)

    return standing_for(command, called)


def now_option(command: Command) -> Command:
    """The option `--now`, as `now_ms`: the time to which ages are measured."""

    def called(now: str | None, **others: Any) -> Any:
        now_ms = time.time_ns() // 1_000_000 if now is None else _time_ms("--now", now)
        return command(now_ms=now_ms, **others)

    about = (
        "The time to which ages are measured, such as the time of a backup; by default now. Without a zone: "
        "in --tz, else in the zone of this machine."
    )
    return click.option("--now", metavar="TIME", help=about)(standing_for(command, called))


def broker_confs_option(command: Command) -> Command:
    """The option `--broker-conf`, as `broker_confs`: those for the stores or the roots of the command."""

    def called(broker_conf: tuple[str, ...], **others: Any) -> Any:
        from store_format.metadata.broker_confs import BrokerConfs

        confs = BrokerConfs()
        if broker_conf:
            from rmq_spark.cli.broker_conf import given_confs  # few runs need it

            confs = given_confs(map(paths.given, broker_conf))
            if "stores" in others:
                confs = confs_for(confs, [store.broker_name for store in others["stores"]])
            elif roots := others.get("roots") or [others[name] for name in ("root",) if name in others]:
                confs = confs_for(confs, [broker_name(root) for root in roots])
        return command(broker_confs=confs, **others)

    about = (
        "The broker's broker.conf; by default .rmqlog/broker.conf of the store, else default settings. In a "
        "directory of stores, a file with brokerName is for that broker only; repeatable."
    )
    return click.option("--broker-conf", type=_PATH, multiple=True, metavar="FILE", help=about)(
        standing_for(command, called)
    )


def confs_for(confs: BrokerConfs, names: Sequence[str]) -> BrokerConfs:
    """The files of `--broker-conf` for the stores of these brokers; says which stores have none of them."""
    found = confs.for_stores(names)
    without = sorted(name for name in names if found.of(name) is None)
    if found.files and without:
        files = ", ".join(f"{path} is of {name}" for path, name in found.files)
        remark(f"--broker-conf: {files}; default settings, or those in .rmqlog/, for {first_names(without)}")
    return found


def expect_stores_option(command: Command) -> Command:
    """The option `--expect-stores`, as `expected_count`: a number, or None."""
    about = "The number of stores in a directory of stores; another number is reported."
    return click.option("--expect-stores", "expected_count", type=click.IntRange(1), metavar="N", help=about)(
        command
    )


def file_reserved_time_option(command: Command) -> Command:
    """The option `--file-reserved-time`, as `hours`: a number, or None."""
    about = "Keep files for HOURS after their last write (fileReservedTime)."
    return click.option("--file-reserved-time", "hours", type=click.IntRange(0), metavar="HOURS", help=about)(
        command
    )


# ---- the filters of messages -------------------------------------------------------------------------------


def without_topic(filters: MessageChoice) -> MessageChoice:
    """The filters without `--topic`, for a caller that applies the topics itself."""
    given = {each.name: getattr(filters, each.name) for each in fields(MessageChoice)}
    return MessageChoice(**given | {"glob": None, "include_system_topics": True})


def refuse_unknown_topic(filters: MessageChoice, known: Iterable[str]) -> None:
    """Raises NotFoundError, with the nearest name, if one of the `--topic` matches no topic of `known`."""
    names = sorted(known)
    for glob in globs_of(filters):
        alone = MessageChoice(glob=glob, include_system_topics=filters.include_system_topics)
        if not any(map(alone.chooses_topic, names)):
            raise NotFoundError(f"no topic is named {glob!r}; {_topic_advice(glob, names)}")


def refuse_what_no_store_has(filters: MessageChoice, stores: Sequence[MessageStore]) -> None:
    """Raises NotFoundError if one of the `--topic` matches no topic of the stores, or if none of these topics
    has one of the `--queue`.
    """
    if filters.has_topics:
        refuse_unknown_topic(filters, known_topics(stores))
    if filters.queue_ids:
        _refuse_unknown_queue(filters, stores)


def _refuse_unknown_queue(filters: MessageChoice, stores: Sequence[MessageStore]) -> None:
    from store_format.metadata.read import read_topics

    queues = {
        (queue.topic, queue.queue_id) for store in stores for queue in store.queues(filters.chooses_topic)
    }
    if {queue_id for _, queue_id in queues} >= {*filters.queue_ids}:
        return
    for store in stores:  # a queue without messages may have no files
        for topic, config in (read_topics(store.opened) or {}).items():
            if filters.chooses_topic(topic):
                queues |= {(topic, queue_id) for queue_id in config.queue_ids}
    topics, ids = {topic for topic, _ in queues}, sorted({queue_id for _, queue_id in queues})
    missing = [queue_id for queue_id in filters.queue_ids if queue_id not in ids]
    if not missing or not ids:
        return
    named = first_names(map(str, ids))
    if len(topics) == 1:
        raise NotFoundError(f"{shown(*topics)} has no queue {missing[0]}; its queues are {named}")
    raise NotFoundError(f"no chosen topic has a queue {missing[0]}; their queues are {named}")


def _topic_advice(glob: str, names: Sequence[str]) -> str:
    """What to type instead of a topic that no store has."""
    topic, slash, queue_id = glob.partition("/")
    if slash and topic in names and queue_id.isdecimal():
        return f"a queue is --topic {shlex.quote(topic)} --queue {queue_id}"
    parts = [part.strip() for part in glob.split(",")]
    if len(parts) > 1 and all(part in names for part in parts):
        return f"several topics are {' '.join(f'-t {shlex.quote(part)}' for part in parts)}"
    return did_you_mean(glob, names, "topics")


class _QueueOffset(click.IntRange):
    """A queue offset. The error for an offset before 0 names the command for the end of a queue."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, str) and re.fullmatch("-[0-9]+", value):
            self.fail(
                f"an offset is 0 or more; rmqlog tail -n {value[1:]} shows the last messages", param, ctx
            )
        return int(super().convert(value, param, ctx))


_OPTIONS: dict[str, Callable[[Command], Command]] = {
    "topic": click.option(
        "-t",
        "--topic",
        metavar="GLOB",
        shell_complete=complete_topic,
        help="Topics, such as Orders or 'Order*'.",
    ),
    "topics": click.option(
        "-t",
        "--topic",
        "topics",
        metavar="GLOB",
        multiple=True,
        shell_complete=complete_topic,
        help="Topics, such as Orders or 'Order*'; repeatable.",
    ),
    "all": click.option("-a", "--all", "include_system_topics", is_flag=True, help="Include system topics."),
    "queue": click.option(
        "-q",
        "--queue",
        "queue_ids",
        type=click.IntRange(0),
        multiple=True,
        metavar="ID",
        help="A queue id; repeatable.",
    ),
    "tag": click.option(
        "--tag", "tags", multiple=True, help="Messages with this tag, or 'paid || shipped'; repeatable."
    ),
    "key": click.option("-k", "--key", help="Messages with this key or UNIQ_KEY."),
    "since": click.option(
        "--since",
        metavar="TIME",
        help="Stored at or after: ISO 8601, ms since 1970, or -2h. Without a zone: in --tz, else in the zone "
        "of this machine.",
    ),
    "until": click.option("--until", metavar="TIME", help="Stored before this time; zones as for --since."),
    "where": click.option(
        "--where",
        metavar="SQL92",
        multiple=True,
        help="A condition on message properties: \"region = 'north'\"; several must all be true.",
    ),
    "body": click.option(
        "--body",
        metavar="TEXT",
        multiple=True,
        help="Messages whose body contains this text (UTF-8); of several, all of them.",
    ),
    "ignore_case": click.option(
        "-i", "--ignore-case", is_flag=True, help="Ignore upper and lower case in --body."
    ),
    "regex": click.option("-E", "--regex", is_flag=True, help="Take --body as a regular expression (RE2)."),
    "offset": click.option(
        "--offset",
        type=_QueueOffset(0),
        metavar="N",
        help="From this queue offset on, in each queue; with --topic and --queue in one.",
    ),
    "limit": click.option(
        "-n", "--limit", type=click.IntRange(1), metavar="N", help="The largest number of rows."
    ),
    "messages": click.option(
        "-n",
        "--limit",
        type=click.IntRange(1),
        metavar="N",
        help="The largest number of messages for each key, not of rows; by default 20.",
    ),
    "count": click.option("-n", "--limit", type=click.IntRange(0), metavar="N", help="How many messages."),
}


def keys_option(command: Command) -> Command:
    """The option `--key`, which may be repeated, as `keys`."""
    about = "Messages with this key or UNIQ_KEY; repeatable."
    return click.option("-k", "--key", "keys", multiple=True, callback=checked_keys, help=about)(command)


def checked_keys(
    context: click.Context, parameter: click.Parameter, keys: tuple[str, ...]
) -> tuple[str, ...]:
    """The keys of an option or argument. Raises OptionError for an empty key."""
    from store_format.read.choice import refuse_empty_key

    for key in keys:
        refuse_empty_key(key)
    return keys


def filter_options(*names: str, limit: int | None = None) -> Callable[[Command], Command]:
    """The filter options `names`; the command gets the values as `filters`. `limit` is the default of -n."""

    def decorate(command: Command) -> Command:
        taken = set(names)
        parameters = {
            "all": "include_system_topics",
            "queue": "queue_ids",
            "tag": "tags",
            "count": "limit",
            "messages": "limit",
        }
        wanted = [parameters.get(name, name) for name in taken]

        def called(**given: Any) -> Any:
            mine = {name: given.pop(name) for name in wanted}
            return command(filters=_filters(mine, limit), **given)

        called = standing_for(command, called)
        for name in reversed([name for name in _OPTIONS if name in taken]):
            called = _OPTIONS[name](called)
        return called

    return decorate


def _time_ms(option: str, text: str) -> int:
    from rmq_spark.cli.typed_times import (  # `rmqlog --help` needs none of it
        refuse_unquoted_time,
        typed_time_ms,
    )

    refuse_unquoted_time(option, text)
    return typed_time_ms(option, text)


def _filters(given: dict[str, Any], limit: int | None) -> MessageChoice:  # Any: what click parsed
    for name in ("since", "until"):
        if name in given:
            text = given.pop(name)
            given[f"{name}_ms"] = None if text is None else _time_ms(f"--{name}", text)
    if (
        given.get("since_ms") is not None
        and given.get("until_ms") is not None
        and given["since_ms"] >= given["until_ms"]
    ):
        raise click.UsageError("--since must be before --until")
    if "where" in given:
        given["where"] = _where(given["where"])
    topic = given.pop("topic", None)
    globs = given.pop("topics", () if topic is None else (topic,))
    if "tags" in given:
        given["tags"] = _tags(given["tags"])
    if "regex" in given:
        given["body"] = _body(given.get("body", ()), given.pop("ignore_case"), given.pop("regex"))
    if "limit" in given and given["limit"] is None:
        given["limit"] = limit
    return choice_of_topics(globs, **given)


def _tags(expressions: tuple[str, ...]) -> frozenset[str] | None:
    """The tags of all `--tag`; None for no choice. RocketMQ separates tags by ||, and * is each tag."""
    tags = {tag.strip() for text in expressions for tag in text.split("||")} - {""}
    if expressions and not tags:
        raise click.UsageError("--tag: expected a tag, found an empty text")
    return None if "*" in tags else frozenset(tags) or None


def _where(conditions: Sequence[str]) -> PropertyFilter | None:
    """The condition that all `conditions` are true; None without any."""
    if not conditions:
        return None
    from rmq_spark.consume.sql92 import parse_condition

    parsed = [parse_condition(text, "--where") for text in conditions]
    if len(parsed) == 1:
        return parsed[0]
    from rmq_spark.cli.body_pattern import AllConditions

    return AllConditions(tuple(parsed))


def _body(texts: Sequence[str], ignore_case: bool, regex: bool) -> str | BodyFilter | None:
    if not texts:
        if ignore_case or regex:
            raise click.UsageError(f"{'--regex' if regex else '--ignore-case'} needs --body TEXT")
        return None
    if "" in texts:
        raise click.UsageError("--body: the text is empty")
    if len(texts) == 1 and not (ignore_case or regex):
        return texts[0]
    from rmq_spark.cli.body_pattern import AllBodies, BodyPattern, BodyText

    parts = [
        BodyPattern(text, ignore_case, regex) if ignore_case or regex else BodyText(text) for text in texts
    ]
    return parts[0] if len(parts) == 1 else AllBodies(tuple(parts))


# ---- all options -------------------------------------------------------------------------------------------


def standing_for(command: Command, called: Command) -> Command:
    """`called`, a function around `command`, with the help text and the options of `command`."""
    called.__doc__, called.__name__ = command.__doc__, command.__name__
    parameters = getattr(command, "__click_params__", [])  # click keeps the options of a function here
    called.__click_params__ = parameters  # type: ignore[attr-defined] # click's attribute
    return called


# ---- the stores that a command writes to -------------------------------------------------------------------


def broker_name(root: str) -> str:
    """The name of the store's broker; that of the directory if the store's files cannot be read."""
    from store_format.opened.store import Opened
    from store_format.read.store_root import broker_name_of

    try:
        return broker_name_of(Opened(root))
    except StoreError:
        return os.path.basename(root)


def conf_of(broker_confs: BrokerConfs, root: str) -> str | None:
    """The broker.conf for the store at `root`, whose broker is asked for only if a file names one."""
    return broker_confs.of(broker_name(root) if any(name for _, name in broker_confs.files) else "")


def named_roots(roots: Sequence[str]) -> list[str]:
    """The path and the broker of each store, for people. Raises OptionError for two stores of one broker."""
    from store_format.read.store_root import refuse_equal_names

    names = [broker_name(root) for root in roots]
    refuse_equal_names(zip(names, roots, strict=True))
    return [f"{shown(root)} (broker {shown(name)})" for name, root in zip(names, roots, strict=True)]
