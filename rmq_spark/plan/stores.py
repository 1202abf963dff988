"""Opens the stores that a read is about."""

from __future__ import annotations

from typing import TYPE_CHECKING

from store_format.errors import OptionError, StoreError
from store_format.files.read import Refused, refuse
from store_format.read.store import Store
from store_format.read.store_root import refuse_equal_names, refuse_repeated, store_roots

if TYPE_CHECKING:
    from rmq_spark.options.read_options import ReadOptions


def open_stores(options: ReadOptions, *, skip_unreadable: bool | None = None) -> list[Store]:
    """The stores of all paths, in the order of the paths, and by name within a cluster.

    With `skip_unreadable` (by default if failOnDataLoss is false), stores and queues that the user must not
    read are left out with a warning. Queues of an unknown fate (`unfiledQueues`) are an error if
    failOnDataLoss is true, else left out with a warning.

    Raises StoreNotFoundError for a path without a store, and OptionError if two paths are one store, or if
    two stores have the same broker name: their queues would have the same names. (Master and slave of a
    broker are such a pair, with the same messages.)
    """
    skip = not options.fail_on_data_loss if skip_unreadable is None else skip_unreadable
    refused: list[StoreError] = []
    stores: list[tuple[str, Store]] = []
    for path in options.paths:
        for root in _roots(path, options, refused.append if skip else refuse):
            store = Store.open(
                root,
                broker_name=options.broker_name,
                commit_log_paths=options.commit_log_paths,
                skip_unreadable=skip,
                unfiled_queues=options.unfiled_queues,
                fail_on_unknown=None if skip_unreadable else options.fail_on_data_loss,
            )
            stores.append((path, store))
    refuse_repeated((path, store.path, store.commit_log_paths) for path, store in stores)
    found = [store for _, store in stores]
    refuse_equal_names((store.broker_name, store.path) for store in found)
    found[0].pass_over(refused)
    return found


def _roots(path: str, options: ReadOptions, refused: Refused) -> list[str]:
    roots = [path] if options.commit_log_paths else store_roots(path, refused)
    if len(roots) > 1 and options.broker_name is not None:
        raise OptionError(
            f"brokerName names one store, and {path} is a cluster of {len(roots)} stores; "
            "leave it out: each store has the name of its broker"
        )
    return roots
