"""The commands that `verify` and `recover` name as the next one to type, about the same store the same."""

from __future__ import annotations

import shlex

from rmq_spark.cli.remarks import given_store
from store_format.display.text import shown


def recover_command(root: str, conf: str = "") -> str:
    """`recover` of the store itself; `conf` is the broker.conf that it needs, as a word for a shell."""
    return f"rmqlog recover {given_store(root)}{_option(conf)}"


def salvage_command(root: str, conf: str = "") -> str:
    """`recover` into a new directory beside the store; for one on object storage, in this directory."""
    from store_format.diagnose import unheard
    from store_format.files import paths
    from store_format.read.store_root import beside_cluster

    with unheard():  # of the stores beside this one, which nobody named
        beside = paths.base_name(root) if paths.is_remote(root) else beside_cluster(root)
    target = shlex.quote(shown(f"{beside}-recovered"))
    return f"rmqlog recover {given_store(root)} --into {target} --salvage{_option(conf)}"


def move_command(directory: str) -> str:
    """Moves a database of consume queues aside, in its store: a broker builds it again."""
    return f"mv {shlex.quote(shown(directory))} {shlex.quote(shown(f'{directory}.broken'))}"


def _option(conf: str) -> str:
    return f" --broker-conf {conf}" if conf else ""
