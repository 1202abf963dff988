"""Host text and message ids against the broker's own, and there and back again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store_format.message.hosts import format_host, format_hosts, offset_msg_ids, parse_host

_TESTS = Path(__file__).parents[2]
_HOSTS = st.tuples(
    st.binary(min_size=4, max_size=4) | st.binary(min_size=16, max_size=16), st.integers(0, 65535)
)


def addresses(ips: list[bytes]) -> Any:
    return np.frombuffer(b"".join(ips), f"V{len(ips[0])}")


@pytest.mark.parametrize(
    "row",
    json.loads((_TESTS / "vectors" / "vectors.json").read_text("utf-8"))["offset_msg_id"],
    ids=lambda row: row["ip"],
)
def test_ids_equal_the_vectors(row: dict[str, Any]) -> None:
    host = f"[{row['ip']}]" if ":" in row["ip"] else row["ip"]
    ip, port = parse_host(f"{host}:{row['port']}")
    ids = offset_msg_ids(addresses([ip, ip]), np.array([port, port]), np.array([row["commitlog_offset"]] * 2))
    ids.validate(full=True)
    assert ids.to_pylist() == [row["msg_id"]] * 2


@given(_HOSTS)
def test_text_parses_back(host: tuple[bytes, int]) -> None:
    assert parse_host(format_host(*host)) == host


@given(
    st.lists(
        st.tuples(
            st.sampled_from([bytes(4), b"\x0a\x01\x02\x03", b"\xff" * 4]), st.integers(-(2**31), 2**31 - 1)
        )
    )
)
def test_many_equal_one_for_every_port(hosts: list[tuple[bytes, int]]) -> None:
    ips = np.array([ip for ip, _ in hosts], "V4")
    ports = np.array([port for _, port in hosts], np.int32)
    assert format_hosts(ips, ports).to_pylist() == [format_host(*host) for host in hosts]


def test_a_mapped_address_shows_as_the_ipv4_java_makes_of_it() -> None:
    mapped = bytes.fromhex("00000000000000000000ffff0a010203")
    assert format_hosts(addresses([mapped]), np.array([1])).to_pylist() == ["10.1.2.3:1"]


@pytest.mark.parametrize("size", [4, 16])
def test_no_hosts_give_empty_arrays(size: int) -> None:
    none, numbers = np.empty(0, f"V{size}"), np.empty(0, np.int64)
    assert format_hosts(none, numbers).to_pylist() == []
    assert offset_msg_ids(none, numbers, numbers).to_pylist() == []


def test_java_prints_a_slash_and_people_shorten() -> None:
    assert parse_host("/127.0.0.2:30911") == (b"\x7f\0\0\x02", 30911)
    assert parse_host("[::1]:80") == (bytes(15) + b"\x01", 80)


@pytest.mark.parametrize(
    "text",
    [
        *("", "localhost:80", "1.2.3:80", "1.2.3.4", "1.2.3.4:65536"),
        *("1.2.3.4:-1", "::1:80", "[1.2.3.4]:80", "[::1%eth0]:80", "1.2.3.4:٣"),
    ],
)
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a host"):
        parse_host(text)
