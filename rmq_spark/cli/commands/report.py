"""`report`: what is wrong with a store, may a broker start, what is gone, and whom does it affect?"""

from __future__ import annotations

import os
import shlex
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from rmq_spark.cli.exit_codes import DAMAGE, NOT_FOUND, OK, PARTIAL
from rmq_spark.cli.needed_settings import write_needed_settings
from rmq_spark.cli.options import broker_confs_option, conf_of, now_option, store_argument
from rmq_spark.cli.output import Output, Verdict, fitted, table_output, tz_option, write_verdict
from rmq_spark.cli.output_file import new_file, refuse_inside_store
from rmq_spark.cli.remarks import Progress, given_store, remark
from store_format.display.text import shown
from store_format.display.units import size_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rmq_spark.report import Report
    from store_format.metadata.broker_confs import BrokerConfs

_SHOWN = ("before", "settings", "lost", "groups", "backups", "lag")
_WITHOUT_ROWS = ("settings", "lag")
_PROBLEMS_MAX = 3
_ROWS_MAX = 10
_CONF = "--broker-conf FILE"
_WORDS = {
    "yes": "a broker may start",
    "no": "a broker may not start",
    "unknown": "unknown whether a broker may start",
}
_FORMS = {".html": "html", ".md": "markdown", ".json": "json"}


@click.command("report")
@store_argument(opened=False)
@click.option(
    "-o",
    "--output",
    "out",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Write FILE: .html, a page for a browser and for paper; .md, Markdown; .json, all rows.",
)
@click.option(
    "--before",
    metavar="OTHER",
    type=click.Path(readable=False),
    help="What changed since OTHER, an earlier state of the store: the store before a recovery, or a backup.",
)
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@click.option("--sha256", is_flag=True, help="Also the SHA-256 digest of each file; reads all files.")
@now_option
@broker_confs_option
@tz_option
def report_(
    roots: list[str],
    commit_log_paths: tuple[str, ...],
    out: str | None,
    before: str | None,
    force: bool,
    sha256: bool,
    now_ms: int,
    broker_confs: BrokerConfs,
    tz: str | None,
) -> int:
    """May a broker start? What is gone, and whom does it affect?

    Checks the whole store as verify does, and adds what is known of each lost message, the groups that lose
    it, disk use by topic, lag, what retention deletes next, and the files. Without -o, only the answers and
    the losses are shown. A page for a browser is one file, without anything from the network; its times are
    in UTC. The exit code is 0 if a broker may start, 3 if not or if messages are damaged, 4 if that is
    unknown, and 1 if messages of OTHER are missing or changed.

    \b
    rmqlog report /data/store
    rmqlog report /data/store -o report.html
    rmqlog report /data/recovered --before /data/damaged -o report.html
    """
    from rmq_spark.cli.commands.verify import log_bytes, verdict_of
    from rmq_spark.report import report

    if len(roots) > 1:
        raise click.UsageError("a report is about one store, but STORE is a cluster: give one of its stores")
    form, (root,) = _form_of(out), roots
    start, size = log_bytes(root, commit_log_paths)
    broker_conf = conf_of(broker_confs, root)
    with ExitStack() as stack:
        if out is not None:  # an error before the store is read
            refuse_inside_store(out, (root, *commit_log_paths))
            file = stack.enter_context(new_file(os.path.abspath(out), replace=force))
        with Progress(f"report {shown(root)}", size) as progress:
            found = report(
                root,
                commit_log_paths,
                now_ms=now_ms,
                broker_conf=broker_conf,
                sha256=sha256,
                before=before,
                next_command=lambda diagnosis: verdict_of(root, diagnosis).command.replace(
                    _CONF, _CONF.replace("FILE", shlex.quote(shown(broker_conf or "FILE")))
                ),
                given_store=given_store(root),
                on_offset=lambda offset: progress.reach(offset - start),
            )
        if out is not None:
            text = str(getattr(found, form)()).encode(errors="replace")
            file.write(text)
    if out is None:
        _show(table_output(tz), found, commit_log_paths)
    else:
        remark(_may_start(found))
        remark(f"verdict: {found.verdict}")
        if found.command:
            remark(f"next: {found.command}")
        remark(f"{size_text(len(text))} written to {shown(out)}")
    return _code(found)


def _show(output: Output, found: Report, commit_log_paths: Sequence[str]) -> None:
    """The losses as tables, and the answers below them."""
    from rmq_spark.cli.view_rows import show_batches

    for section in found.sections:
        if section.key not in _SHOWN:
            continue
        for line in (section.about, section.warning):
            if line:
                print(fitted(output, shown(line), indent=0))
        visible = section.visible
        if section.key not in _WITHOUT_ROWS and visible is not None and visible.num_rows:
            show_batches(output, visible.to_batches(), visible.schema.names, limit=_ROWS_MAX)
            if section.rows > _ROWS_MAX:
                where = section.all_rows or "-o report.json has them"
                print(fitted(output, f"… {section.rows - _ROWS_MAX:,} more rows: {where}", indent=2))
    problems = [*found.diagnosis.of("damage"), *found.diagnosis.of("warning")]
    for problem in problems[:_PROBLEMS_MAX]:
        print(fitted(output, str(replace(problem, advice="")).rstrip(), indent=2))
    if len(problems) > _PROBLEMS_MAX:
        print(f"… {len(problems) - _PROBLEMS_MAX:,} more problems: rmqlog verify {given_store(found.path)}")
    write_needed_settings(output, found.path, commit_log_paths)
    print(fitted(output, shown(f"{'broker:':<9}{_may_start(found)}"), indent=9))
    is_bad = found.start.may != "yes" or bool(found.diagnosis.of("damage"))
    write_verdict(output, Verdict(found.verdict, found.command, is_bad=is_bad))


def _may_start(found: Report) -> str:
    file = f" ({shown(found.start.file)})" if found.start.file else ""
    between = ": " if found.start.cause else ", " if found.start_warning else "; "
    cause = f"{between}{found.start_cause}{file}" if found.start_cause else ""
    return f"{_WORDS[found.start.may]}{cause}"


def _form_of(out: str | None) -> str:
    if out is None:
        return ""
    suffix = os.path.splitext(out)[1].lower()
    if suffix not in _FORMS:
        raise click.UsageError(
            f"-o {shown(out)}: expected a name that ends with .html, .md or .json, found "
            f"{shown(suffix) or 'no suffix'}"
        )
    return _FORMS[suffix]


def _code(found: Report) -> int:
    if found.diagnosis.of("damage") or found.start.may == "no":
        return DAMAGE
    if any(section.key == "before" and section.warning for section in found.sections):
        return NOT_FOUND
    return OK if found.start.may == "yes" else PARTIAL
