"""The files of `--broker-conf`: whether each is a broker.conf, and of which broker.

Another file has no settings, and would be read as a broker.conf with the default settings.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from store_format.display.text import cut, shown
from store_format.errors import OptionError
from store_format.metadata.broker_confs import BrokerConfs

_SETTING = re.compile(r"[a-z][A-Za-z0-9]*[ \t]*=")  # fields of BrokerConfig and MessageStoreConfig
_LINE_COLUMNS = 60


def given_confs(files: Iterable[str]) -> BrokerConfs:
    """The settings files of these absolute paths. Raises OptionError for another file."""
    every = list(files)
    for path in every:
        _refuse_other_file(path)
    return BrokerConfs.read(every)


def _refuse_other_file(path: str) -> None:
    """Raises OptionError for a file without any setting, unless all its lines are blank or comments.

    A missing file is left to the reader of the settings.
    """
    from store_format.files.read import files_at

    data = files_at(path).read(path)
    lines = [] if data is None else data.decode("latin-1").splitlines()
    stripped = [(number, line.strip()) for number, line in enumerate(lines, 1)]
    said = [(number, line) for number, line in stripped if line and line[0] not in "#!"]
    if not said or any(_SETTING.match(line) for _, line in said):
        return
    number, line = said[0]
    raise OptionError(
        f"{path}: expected a broker.conf, with lines such as fileReservedTime=48, found no setting; line "
        f"{number} is '{cut(shown(line), _LINE_COLUMNS)}'. Give the file with which the broker is started "
        "(mqbroker -c FILE)"
    )
