"""broker.conf: Java's properties format, and the settings that a broker would take from the file."""

from __future__ import annotations

import pickle
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store_format.bookkeeping.settings import broker_conf_of
from store_format.errors import OptionError, StoreNotFoundError
from store_format.metadata.read import (
    BrokerConf,
    parse_delay_levels,
    parse_properties,
    read_broker_conf,
)
from store_format.names import DELAY_LEVELS_MS
from store_format.opened.store import Opened
from tests.support import goldens


def _conf(**properties: str) -> BrokerConf:
    return BrokerConf.of(properties, "broker.conf")


# ---- the properties format ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("a=1", "a", "1"),
        ("a = 1 ", "a", "1 "),  # java.util.Properties keeps what ends a line
        ("a:1", "a", "1"),
        ("a 1", "a", "1"),
        ("a\t=\f1", "a", "1"),
        ("  a=1", "a", "1"),
        ("a==1", "a", "=1"),
        ("a", "a", ""),
        ("a=", "a", ""),
        (r"a\=b=c", "a=b", "c"),
        (r"a\ b=c", "a b", "c"),
        (r"a=\u0041\t\n\q\\", "a", "A\t\nq\\"),
        ("a=b\\\n   c", "a", "bc"),
        ("a=b\\\r\nc", "a", "bc"),
        ("a=b\\\\\nc=d", "c", "d"),  # an escaped backslash continues nothing
        ("# a=1\n! b=2\na=3", "a", "3"),
        ("a=1\na=2", "a", "2"),
        ("a=b\\\n# c", "a", "b# c"),  # no comment within an entry
        ("a=é", "a", "\u00c3\u00a9"),  # Latin-1, as in Java
    ],
)
def test_entries_are_read_as_java_reads_them(text: str, name: str, value: str) -> None:
    assert parse_properties(text.encode())[name] == value


def test_comments_blank_lines_and_line_ends() -> None:
    data = b"\n \t\n# x=1\r! y=1\r\n a=1\rb=2\r\nc=3\\"
    assert parse_properties(data) == {"a": "1", "b": "2", "c": "3"}


@given(st.binary(max_size=200))
def test_hostile_bytes_give_settings_or_an_error_of_the_store(data: bytes) -> None:
    entries = parse_properties(data)
    assert all(isinstance(part, str) for entry in entries.items() for part in entry)
    with suppress(OptionError):
        conf = _conf(**parse_properties(b"fileReservedTime=" + data))
        assert -(1 << 31) <= conf.file_reserved_hours < 1 << 31


# ---- the settings ------------------------------------------------------------------------------------------


def test_the_defaults_are_those_of_the_broker() -> None:
    conf = BrokerConf()
    assert conf.message_delay_levels_ms == DELAY_LEVELS_MS
    assert (conf.file_reserved_hours, conf.delete_when, conf.delete_file_batch_max) == (72, (4,), 10)
    assert (conf.disk_max_used_percent, conf.disk_forcibly_percent, conf.disk_warning_percent) == (75, 85, 90)
    assert (conf.transaction_timeout_ms, conf.transaction_check_max) == (6000, 15)
    assert conf.given == frozenset()


def test_settings_are_read_and_named_and_unknown_ones_are_accepted() -> None:
    conf = _conf(
        messageDelayLevel="1s 2m 3h 4d ",
        fileReservedTime="0",
        deleteWhen="04;23",
        cleanFileForciblyEnable="FALSE",
        brokerClusterName="DefaultCluster",
        listenPort="10911",
    )
    assert conf.message_delay_levels_ms == (1000, 120_000, 10_800_000, 345_600_000)
    assert (conf.file_reserved_hours, conf.delete_when) == (0, (4, 23))
    assert conf.clean_file_forcibly_enable is False
    assert {"fileReservedTime", "brokerClusterName"} <= conf.given
    assert pickle.loads(pickle.dumps(conf)) == conf


@pytest.mark.parametrize(
    ("name", "text"),
    [
        # a broker silently uses its default for "72 "
        *(("fileReservedTime", text) for text in ("3 d", "72 ", "2147483648", "1_000", "٧", "")),
        *(("timerWheelEnable", text) for text in ("yes", "true ")),
        *(("deleteWhen", text) for text in ("24", "4h", "04; 05", "")),
        *(("messageDelayLevel", text) for text in ("1s 2x", "1.5s", "")),
    ],
)
def test_a_bad_value_is_an_error_that_names_file_setting_and_value(name: str, text: str) -> None:
    with pytest.raises(OptionError) as caught:
        _conf(**{name: text})
    assert str(caught.value).startswith(f"broker.conf: {name}: expected")


def test_ratios_outside_the_brokers_limits_are_clamped() -> None:
    names = ("diskMaxUsedSpaceRatio", "diskSpaceCleanForciblyRatio", "diskSpaceWarningLevelRatio")
    for value, percents in (("99", (95, 85, 90)), ("1", (10, 30, 35))):
        conf = _conf(**dict.fromkeys(names, value))
        assert (conf.disk_max_used_percent, conf.disk_forcibly_percent, conf.disk_warning_percent) == percents


def test_delay_levels_of_one_text() -> None:
    assert parse_delay_levels("30s") == (30_000,)


# ---- where they come from ----------------------------------------------------------------------------------


def test_a_given_file_goes_before_the_stores_own(tmp_path: Path) -> None:
    own = tmp_path / ".rmqlog" / "broker.conf"
    given = tmp_path / "given.conf"
    given.write_text("fileReservedTime=5\n")
    root = str(tmp_path)
    assert broker_conf_of(Opened(root)) == BrokerConf()
    own.parent.mkdir()
    own.write_text("brokerName=b\nfileReservedTime=6\n")
    assert broker_conf_of(Opened(root)).file_reserved_hours == 6
    assert broker_conf_of(Opened(root), str(given)).file_reserved_hours == 5
    assert broker_conf_of(Opened(root), BrokerConf(file_reserved_hours=7)).file_reserved_hours == 7


def test_a_missing_file_is_an_error_only_if_somebody_named_it(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFoundError, match=r"none\.conf: expected the broker\.conf"):
        broker_conf_of(Opened(str(tmp_path)), str(tmp_path / "none.conf"))


def test_the_settings_of_a_real_broker(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    given = goldens.config("delay-tx-5.5.0")
    path.write_text("".join(f"{name}={value}\n" for name, value in given.items()))
    conf = read_broker_conf(str(path))
    assert set(given) <= conf.given
