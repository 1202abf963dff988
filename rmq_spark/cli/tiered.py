"""Where the stores of a command have tiered storage: `--tiered`, `--broker-conf`, or the store's own file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rmq_spark.cli.remarks import remark
from store_format.display.text import first_names
from store_format.errors import StoreError


class Tiered(NamedTuple):
    """What the command line says: the path of `--tiered`, and the files of `--broker-conf`."""

    given: str | None = None
    conf_files: Sequence[str] = ()

    def paths(self, roots: Sequence[str], broker_name: str | None = None) -> dict[str, str]:
        """tieredStoreFilePath by store root, of the stores that are read together with it.

        In a cluster, brokers without a directory there are read without it, and a remark names them; without
        any broker that has one it is an error. A path that only the store gives is used if it is there.
        """
        from store_format.opened.store import Opened
        from store_format.read.tiered_paths import brokers_with_tiered, own_tiered_path

        if self.given is None and not self.conf_files:
            own = {root: path for root in roots if (path := own_tiered_path(Opened(root))) is not None}
            if not own:
                return {}
            names = {root: broker_name or _name_of(root) for root in own}
            asked, missing_ok = own, True
        else:
            names = {root: broker_name or _name_of(root) for root in roots}
            asked, missing_ok = self._asked(names), False
            if len(roots) == 1:  # a read raises the error
                return asked
        with_it = brokers_with_tiered(
            {names[root]: path for root, path in asked.items()}, missing_ok=missing_ok
        )
        without = sorted(names[root] for root in asked if names[root] not in with_it)
        if without:
            places = first_names(sorted({*asked.values()}))
            remark(f"tiered storage: {places} has no directory of {first_names(without)}: read without it")
        return {root: path for root, path in asked.items() if names[root] in with_it}

    def _asked(self, names: dict[str, str]) -> dict[str, str]:
        from store_format.files import paths

        if self.given is not None:
            return dict.fromkeys(names, paths.given(self.given))
        from rmq_spark.cli.broker_conf import given_confs
        from store_format.metadata.read import read_broker_conf

        confs = given_confs(map(paths.given, self.conf_files)).for_stores([*names.values()])
        files = {root: file for root, name in names.items() if (file := confs.of(name)) is not None}
        asked = {root: read_broker_conf(file).tiered_store_file_path for root, file in files.items()}
        return {root: paths.given(path) for root, path in asked.items() if path}


def _name_of(root: str) -> str:
    from store_format.files import paths
    from store_format.opened.store import Opened
    from store_format.read.store_root import broker_name_of

    try:
        return broker_name_of(Opened(root))
    except StoreError:  # whoever opens the store raises it
        return paths.base_name(root)
