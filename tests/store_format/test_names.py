"""RocketMQ's reserved names, and the one wording of "did you mean"."""

from __future__ import annotations

import ast
import doctest
from pathlib import Path

import pytest

from store_format import names
from store_format.names import (
    NOT_ALLOWED_SEND_TOPICS,
    SYSTEM_TOPICS,
    dead_letter_topic,
    did_you_mean,
    is_light_queue,
    is_retry_topic,
    is_system_topic,
    nearest,
    normal_topic,
    perm_text,
    pop_retry_topic,
    retry_owner,
    retry_topic,
)

_ROOT = Path(__file__).parents[2]


def test_topics_of_a_group() -> None:
    assert retry_topic("g") == "%RETRY%g"
    assert dead_letter_topic("g") == "%DLQ%g"
    assert is_retry_topic("%RETRY%g")
    assert not is_retry_topic("%DLQ%g")
    assert not is_retry_topic("g%RETRY%")
    assert is_light_queue("%LMQ%g")
    assert not is_light_queue("g")


def test_retry_topics_of_pop() -> None:
    for version in (1, 2):
        name = pop_retry_topic("a_b", "c_d", is_v2=version == 2)
        assert normal_topic(name, "a_b") == ("c_d", version)
        assert normal_topic(name, "a_b_c_d") == (name, 0)
    assert normal_topic("%RETRY%g_", "g") == ("%RETRY%g_", 0)
    assert normal_topic("g_t", "g") == ("g_t", 0)


@pytest.mark.parametrize(
    ("name", "groups", "properties", "expected"),
    [
        ("%RETRY%a_b_c", "a_b", {}, ("a_b", "c")),
        ("%RETRY%a_b_c", "a", {}, ("a", "b_c")),
        ("%RETRY%a_b_c", "a a_b", {}, ("a_b", "c")),  # the longest group
        ("%RETRY%a_b_c", "a a_b a_b_c", {}, ("a_b_c", None)),  # that group exists
        ("%RETRY%a_b_c", "a a_b a_b_c", {"1ST_POP_TIME": "1"}, ("a_b", "c")),
        ("%RETRY%a_b_c", "a a_b a_b_c", {"1ST_POP_TIME": "1", "RETRY_TOPIC": "c"}, ("a_b_c", None)),
        ("%RETRY%a_b_c", "a a_b a_b_c", {"ORIGIN_GROUP": "a"}, ("a", "b_c")),
        ("%RETRY%a_b_c", "a a_b a_b_c", {"ORIGIN_GROUP": "a", "RETRY_TOPIC": "c"}, ("a_b_c", None)),
        ("%RETRY%a_b_c", "", {"ORIGIN_GROUP": "a"}, ("a", "b_c")),
        ("%RETRY%a_b_c", "a_b", {"ORIGIN_GROUP": "other"}, ("a_b", "c")),
        ("%RETRY%a_b_x", "a_b", {}, ("a_b_x", None)),  # a topic that does not exist
        ("%RETRY%a_b+c_d", "a", {}, ("a_b", "c_d")),
        ("%RETRY%_c", "a", {}, ("_c", None)),
        ("%RETRY%", "a", {}, ("", None)),
    ],
)
def test_the_owner_of_a_retry_topic(
    name: str, groups: str, properties: dict[str, str | None], expected: tuple[str, str | None]
) -> None:
    assert retry_owner(name, groups.split(), ["c", "b_c"], properties) == expected


def test_system_topics() -> None:
    topics = ("Orders", "%RETRY%g", "%DLQ%g", "%LMQ%l", "rmq_sys_wheel_timer", "RMQ_SYS_TRANS_HALF_TOPIC")
    assert [topic for topic in topics if not is_system_topic(topic)] == ["Orders"]
    assert all(map(is_system_topic, SYSTEM_TOPICS))
    assert NOT_ALLOWED_SEND_TOPICS < SYSTEM_TOPICS


def test_perm_is_what_mqadmin_shows() -> None:
    assert [perm_text(perm) for perm in (0, 1, 2, 4, 6, 7)] == ["---", "--X", "-W-", "R--", "RW-", "RWX"]


def test_the_nearest_name_in_any_case() -> None:
    assert nearest("QUEUEOFSET", ["queueOffset", "body"]) == "queueOffset"
    assert nearest("zzz", ["queueOffset", "body"]) is None


def test_the_advice_names_the_nearest_or_lists_the_names() -> None:
    assert did_you_mean("Oders", ["Audit", "Orders"], "topics") == "did you mean Orders?"
    assert did_you_mean("x", ["Audit", "Orders"], "topics") == "the topics are Audit, Orders"
    assert did_you_mean("x", ["Audit", "Orders"], "topics", listed_max=1) == "the topics are Audit, …"
    assert did_you_mean("x", [], "topics") == "there are no topics"
    assert did_you_mean("x", ["Audit"]) == ""


def test_the_examples_hold() -> None:
    assert doctest.testmod(names).failed == 0


@pytest.mark.process
def test_no_other_module_spells_a_reserved_name() -> None:
    """A second spelling of a topic, a prefix or a group, or of the advice, is a rule written twice."""
    reserved = SYSTEM_TOPICS | {
        value
        for name, value in vars(names).items()
        if name.endswith(("_PREFIX", "_GROUP", "_TOPIC")) and isinstance(value, str)
    }
    found = []
    for package in ("store_format", "rmq_spark"):
        for path in sorted((_ROOT / package).rglob("*.py")):
            if path.name == "names.py":
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                text = node.value if isinstance(node, ast.Constant) else None
                if isinstance(text, str) and (text in reserved or "did you mean " in text):
                    found.append(f"{path.relative_to(_ROOT)}:{node.lineno} {text!r}")  # type: ignore[attr-defined]
    assert found == []
