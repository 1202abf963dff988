"""`recover`: completes what a crash left, and rebuilds lost consume queues and index files."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from rmq_spark.cli.exit_codes import DAMAGE, OK
from rmq_spark.cli.needed_settings import write_needed_settings
from rmq_spark.cli.next_command import salvage_command
from rmq_spark.cli.options import broker_confs_option, conf_of, store_argument
from rmq_spark.cli.output import Output, Verdict, output_options, write_verdict
from rmq_spark.cli.remarks import given_command, given_store, remark
from rmq_spark.cli.view_rows import show_batches
from store_format.display.text import first_names, shown

if TYPE_CHECKING:
    import pyarrow as pa

    from store_format.metadata.broker_confs import BrokerConfs

_NO_CHANGE = {"end", "keep", "left", "lost", "omit", "unknown"}
_QUEUES = {"consumequeue", "batchconsumequeue"}
_WHAT = "what"
_SHOWN = ("part", "topic", "queueId", "position", _WHAT)

# (action, part) or action -> the action in words. `{}` is the number of entries, with the noun beside it.
_WORDS: dict[str | tuple[str, str], tuple[str, str]] = {
    "end": ("the log ends here, behind {}", "message"),
    "lost": ("{} lost", "message"),
    "unknown": ("more messages may be lost: nothing shows how many", ""),
    "cut": ("removes {} behind the end", "entry"),
    "lower": ("lowers the next offset of the level by {}", "message"),
    "remove": ("removes the file abort", ""),
    "create": ("writes the queue: {}", "entry"),
    "raise": ("raises the topic to {}", "queue"),
    ("create", "topics"): ("creates the topic again", ""),
    "complete": ("adds {} at the end", "entry"),
    ("complete", "commit"): ("completes the interrupted commit", ""),
    "correct": ("corrects {}", "entry"),
    "replace": ("writes the queue's files again: {}", "entry"),
    "rebuild": ("writes index files", "missing entry"),
    "left": ("stays as it is: {}", "message"),
    ("left", "index"): ("stays as it is", ""),
    ("left", "commit"): ("is not copied", ""),
    ("left", "commitlog"): ("keeps {} that no client decodes", "message"),
    "extend": ("fills the short file with zeros", ""),
    "refused": ("refused", ""),
    "copy": ("copies {}", "file"),
    "omit": ("is not copied", ""),
    "salvage": ("fills {}", "damaged place"),
    "restore": ("restores the numbers of {}", "message"),
    "drop": ("leaves out {} behind damage", "old message"),
    ("drop", "commit"): ("drops the interrupted commit", ""),
    "keep": ("keeps {}", "damaged place"),
}


@click.command("recover")
@store_argument(opened=False)
@click.option("--queues", is_flag=True, help="Only the consume queues; the index stays as it is.")
@click.option("--index", is_flag=True, help="Only the index files; consume queues stay as they are.")
@click.option(
    "-t",
    "--topic",
    "topics",
    multiple=True,
    metavar="NAME",
    help="Only the queues of this topic, even if it may have been deleted; repeatable.",
)
@click.option(
    "--cut-after-damage",
    is_flag=True,
    help="Give up the messages behind damage, as a starting broker does.",
)
@click.option(
    "--ignore-missing-stores",
    is_flag=True,
    help="In a cluster: a store that is missing now does not come back. A recovery that needs to ask this "
    "store is then done without it; otherwise it is an error.",
)
@click.option(
    "--into",
    metavar="NEW",
    type=click.Path(readable=False),
    help="Recover a copy in this new directory; STORE is only read.",
)
@click.option(
    "--salvage", is_flag=True, help="With --into: keep the messages behind damage, with their offsets."
)
@click.option("--apply", "apply_", is_flag=True, help="Change the store; without --apply it is only shown.")
@broker_confs_option
@output_options()
def recover_(
    roots: list[str],
    commit_log_paths: tuple[str, ...],
    queues: bool,
    index: bool,
    topics: tuple[str, ...],
    cut_after_damage: bool,
    ignore_missing_stores: bool,
    into: str | None,
    salvage: bool,
    apply_: bool,
    broker_confs: BrokerConfs,
    output: Output,
) -> int:
    """Recover a store; rebuild lost queues and index.

    The broker must be stopped. Ends the log where a broker that starts would end it, and writes every missing
    entry of consume queues and index from the commitlog. Nothing is changed without --apply. --columns also
    has the reason, and byBroker: how many of the entries a broker that starts would write itself.

    \b
    rmqlog recover /data/store
    rmqlog recover /data/store --apply
    rmqlog recover /data/damaged --into /data/recovered --salvage --apply
    """
    from store_format.commit.recover import RECOVER_COLUMNS, recover

    if into is not None and len(roots) > 1:
        raise click.UsageError("--into takes one store, but STORE is a cluster: give one of its stores")
    both = queues == index
    plans = [
        recover(
            root,
            rebuild_queues=queues or both,
            rebuild_index=index or both,
            topics=topics or None,
            into=into,
            cut_after_damage=cut_after_damage,
            ignore_missing_stores=ignore_missing_stores,
            salvage=salvage,
            broker_conf=conf_of(broker_confs, root),
            commit_log_paths=commit_log_paths,
        )
        for root in roots
    ]
    tables = [plan.apply() if apply_ else plan.table() for plan in plans]
    unserved = [] if apply_ else [str(each) for plan in plans if (each := plan.unserved())]
    names = [*(column.name for column in RECOVER_COLUMNS), _WHAT]
    batches = (_with_words(batch) for table in tables for batch in table.to_batches())
    show_batches(output, batches, names, _SHOWN)
    actions = {action for table in tables for action in table["action"].to_pylist()}
    rows = [row for table in tables for row in table.to_pylist()]
    for row in rows:
        if row["action"] == "refused" or (row["part"], row["action"]) == ("index", "left"):
            remark(row["reason"])
    command = ""
    if "refused" not in actions and actions - _NO_CHANGE:
        command = _proof_command(into, commit_log_paths) if apply_ else given_command("--apply")
    lacks_index = any((row["part"], row["action"]) == ("index", "left") for row in rows)
    if not apply_ and (copied := [root for root, plan in zip(roots, plans, strict=True) if plan.needs_copy]):
        conf = conf_of(broker_confs, copied[0])
        given = "" if conf is None else shlex.quote(shown(conf))
        conf = given or ("FILE" if lacks_index else "")
        command = salvage_command(copied[0], conf)
    elif not command and lacks_index:
        command = given_command("--broker-conf", "FILE")
    for root in roots if into is None or not apply_ else [into]:
        write_needed_settings(output, root, commit_log_paths if root in roots else ())
    write_verdict(
        output, Verdict(_verdict(rows, unserved, is_done=apply_), command, is_bad="refused" in actions)
    )
    return DAMAGE if "refused" in actions else OK


def _proof_command(into: str | None, commit_log_paths: Sequence[str]) -> str:
    """What shows that the recovery is complete; of a copy also that it has all that could be read before."""
    if into is None:
        return f"rmqlog verify {given_store()}"
    before = "" if commit_log_paths else f" --before {given_store()}"  # which has the store's own commitlog
    return f"rmqlog report {shlex.quote(shown(into))}{before}"


def _with_words(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows with the column `what`: the action in words."""
    import pyarrow as pa

    words = [
        _put_aside(row) if row["action"] == "aside" else in_words(row["action"], row["part"], row["entries"])
        for row in batch.to_pylist()
    ]
    return batch.append_column(_WHAT, pa.array(words, pa.string()))


def _put_aside(row: Mapping[str, Any]) -> str:  # Any: values of columns
    """Which file is put aside, and what is lost with it: the reason, without its details."""
    return str(row["reason"]).partition(";")[0]


def in_words(action: str, part: str, entries: int | None) -> str:
    """What a recovery does at a place.

    >>> in_words("cut", "consumequeue", 1), in_words("rebuild", "index", 399)
    ('removes 1 entry behind the end', 'writes index files: 399 missing entries')
    """
    text, noun = _WORDS.get((action, part), _WORDS[action])
    if entries is None or (not entries and action != "create"):
        return text.partition(":")[0].replace("{}", f"no {noun}" if action == "end" else f"{noun}s")
    return (
        text.format(_counted(entries, noun))
        if "{}" in text or not noun
        else f"{text}: {_counted(entries, noun)}"
    )


def _verdict(rows: Sequence[Mapping[str, Any]], unserved: Sequence[str], *, is_done: bool) -> str:
    """What the table of a recovery comes to, in one sentence, and what a broker does not serve before."""
    messages = sum(row["entries"] or 0 for row in rows if row["action"] == "end")
    damaged = sum(row["entries"] for row in rows if row["action"] in ("keep", "salvage", "restore"))
    closed = sum(row["entries"] for row in rows if (row["part"], row["action"]) == ("commitlog", "left"))
    whole = _counted(messages - closed, "whole message")
    if closed:
        whole += f", and {closed:,} that no client decodes"
    lost = sum(row["entries"] for row in rows if row["action"] == "lost")
    is_least = any(row["action"] == "unknown" for row in rows)
    if lost:
        whole += f", {'at least ' * is_least}{_counted(lost, 'message')} lost"
    elif is_least:
        whole += ", an unknown number of messages lost"
    if damaged:
        whole += f", and {_counted(damaged, 'damaged place')} in the commitlog"
    whole += "".join(f"; {each}" for each in unserved)
    cut = sum(row["entries"] for row in rows if row["action"] == "cut")
    if cut:
        whole += f"; {'cut' if is_done else 'to cut'}: {_counted(cut, 'entry')}"
    for text in dict.fromkeys(_put_aside(row) for row in rows if row["action"] == "aside"):
        whole += f"; {text}"
    if any(row["action"] == "refused" for row in rows):
        return f"{whole}; the recovery is refused, and nothing was changed"
    changes = [row for row in rows if row["action"] not in {*_NO_CHANGE, "remove"}]
    queues = {(row["brokerName"], row["topic"], row["queueId"]) for row in changes if row["part"] in _QUEUES}
    named = [_counted(len(queues), "consume queue")] if queues else []
    parts = [*named, *sorted({row["part"] for row in changes} - _QUEUES)]
    left = [row["part"] for row in rows if row["action"] == "left"]
    kept = [_counted(count, "consume queue")] if (count := sum(part in _QUEUES for part in left)) else []
    kept += ["index"] if "index" in left else []
    stays = f"; {', '.join(kept)} left as found" if kept else ""
    if omitted := [row["part"] for row in rows if row["action"] == "omit"]:
        stays += f"; not copied: {first_names(omitted)}"
    if not parts and any(row["action"] == "remove" for row in rows):
        return f"{whole}; {'removed' if is_done else 'to remove'}: the file abort{stays}"
    if not parts:
        return f"{whole}; nothing has to be changed{stays}"
    return f"{whole}; {'written' if is_done else 'to write'}: {', '.join(parts)}{stays}"


def _counted(count: int, noun: str) -> str:
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{count:,} {noun if count == 1 else plural}"
