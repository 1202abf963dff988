"""Which broker.conf is for which of several brokers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from store_format.display.text import first_names
from store_format.errors import OptionError
from store_format.metadata.read import read_broker_conf


@dataclass(frozen=True, slots=True)
class BrokerConfs:
    """The broker.conf files that somebody gives for the stores of one or several brokers: (path, brokerName).

    A file that names its broker is for that broker's store, and one without brokerName ("") for all others.
    """

    files: tuple[tuple[str, str], ...] = ()

    @staticmethod
    def read(files: Sequence[str]) -> BrokerConfs:
        """Reads which broker each file names. Raises StoreNotFoundError for no file, and OptionError for a
        bad value and for two files of one broker.
        """
        found: dict[str, str] = {}
        for path in files:
            name = read_broker_conf(path).broker_name
            other = found.setdefault(name, path)
            if other != path:
                whose = f"the broker {name}" if name else "all brokers (without brokerName)"
                raise OptionError(f"{other} and {path} are both for {whose}; give one of them")
        return BrokerConfs(tuple((path, name) for name, path in found.items()))

    def for_stores(self, names: Collection[str]) -> BrokerConfs:
        """The files for the stores of these brokers. For a single store, a single file counts whatever it
        names. Raises OptionError for a file that names another broker.
        """
        if len(names) == len(self.files) == 1:
            return BrokerConfs(((self.files[0][0], ""),))
        for path, name in self.files:
            if name and name not in names:
                raise OptionError(
                    f"{path} is of the broker {name} (brokerName); the stores are those of "
                    f"{first_names(sorted(names))}"
                )
        return self

    def of(self, broker_name: str) -> str | None:
        """The path of the file for a broker's store; None: the store's own settings, else the defaults."""
        by_name = {name: path for path, name in self.files}
        return by_name.get(broker_name, by_name.get(""))
