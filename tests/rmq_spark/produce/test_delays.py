"""Messages for later stand where a broker parks them, with what it writes into them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from store_format.errors import IllegalMessageError
from store_format.java.text import java_hash
from store_format.metadata.read import BrokerConf
from store_format.metadata.values import TopicConfig
from store_format.names import DELAY_LEVELS_MS, SCHEDULE_TOPIC, TIMER_TOPIC
from tests.support.oracle import Message
from tests.support.produced_batches import NOW_MS, batch_of, decoded, message_of, produce, routes_of

TOPIC = TopicConfig("TopicTest", 8, 8)
OWN = {"UNIQ_KEY", "WAIT"}


def delay_properties(message: Message) -> dict[str, str]:
    return {name: value for name, value in message.properties.items() if name not in OWN}


TIMER_DELAY_MAX_MS = 3 * 24 * 3_600_000  # timerMaxDelaySec


@pytest.mark.parametrize(("level", "stored"), [(1, 1), (5, 5), (18, 18), (19, 18), ((1 << 31) - 1, 18)])
def test_a_level_parks_in_its_queue(level: int, stored: int) -> None:
    messages = produce(
        batch_of(topic=["TopicTest"], body=[b"x"], delayTimeLevel=[level], queueId=[6], tags=["a"]),
        routes_of(TOPIC),
    )
    (message,) = decoded(messages)
    assert (message.topic, message.queue_id) == (SCHEDULE_TOPIC, stored - 1)
    real = {"TAGS": "a", "REAL_TOPIC": "TopicTest", "REAL_QID": "6"}
    assert delay_properties(message) == real | {"DELAY": str(stored)}
    assert (messages.timed.tolist(), messages.tags_code.tolist()) == ([True], [DELAY_LEVELS_MS[stored - 1]])
    assert messages.real_topics == ("TopicTest",)


@pytest.mark.parametrize(("level", "stored"), [(1, 1), (2, 2), (3, 3), (4, 3), (18, 3)])
def test_levels_of_the_setting(level: int, stored: int) -> None:
    conf = BrokerConf.of({"messageDelayLevel": "2s 1m 3d"}, "broker.conf")
    messages = produce(
        batch_of(topic=["TopicTest"], body=[b"x"], delayTimeLevel=[level]), routes_of(TOPIC), confs=(conf,)
    )
    (message,) = decoded(messages)
    assert (message.queue_id, message.properties["DELAY"]) == (stored - 1, str(stored))
    assert messages.tags_code.tolist() == [(2000, 60_000, 3 * 24 * 3_600_000)[stored - 1]]


@pytest.mark.parametrize(
    ("after_ms", "out_ms"),
    [(1, NOW_MS - 123), (877, NOW_MS - 123), (878, NOW_MS + 877), (TIMER_DELAY_MAX_MS, None)],
)
def test_a_time_parks_in_the_timer(after_ms: int, out_ms: int | None) -> None:
    """HookUtils.transformTimerMessage: down to a whole second, and a whole second becomes the one before."""
    deliver = NOW_MS + after_ms
    messages = produce(
        batch_of(topic=["TopicTest"], body=[b"x"], deliverTimestamp=[deliver], queueId=[6], tags=["a"]),
        routes_of(TOPIC),
    )
    (message,) = decoded(messages)
    assert (message.topic, message.queue_id) == (TIMER_TOPIC, 0)
    out = deliver - 123 if out_ms is None else out_ms
    real = {"TAGS": "a", "REAL_TOPIC": "TopicTest", "REAL_QID": "6"}
    assert delay_properties(message) == real | {"TIMER_DELIVER_MS": str(deliver), "TIMER_OUT_MS": str(out)}
    assert int(message.properties["TIMER_OUT_MS"]) % 1000 == 0
    assert (messages.timed.tolist(), messages.tags_code.tolist()) == ([False], [java_hash("a")])


def test_the_timers_settings_count() -> None:
    """timerPrecisionMs and timerMaxDelaySec, each row by the settings of its own store."""
    conf = BrokerConf.of({"timerPrecisionMs": "100", "timerMaxDelaySec": "60"}, "broker.conf")
    times = [NOW_MS + 77, NOW_MS + 78, NOW_MS + 60_000]
    batch = batch_of(topic=["TopicTest"] * 3, body=[b"x"] * 3, deliverTimestamp=times)
    messages = produce(batch, routes_of(TOPIC), confs=(conf,))
    outs = [int(message.properties["TIMER_OUT_MS"]) for message in decoded(messages)]
    assert outs == [NOW_MS - 23, NOW_MS + 77, NOW_MS + 59_977]
    with pytest.raises(IllegalMessageError, match="at most 60000 ms from now"):
        produce(
            batch_of(topic=["TopicTest"], body=[b"x"], deliverTimestamp=[NOW_MS + 60_001]),
            routes_of(TOPIC),
            confs=(conf,),
        )


def test_without_a_timer_no_time_to_come_is_accepted() -> None:
    conf = BrokerConf(timer_wheel_enable=False)
    batch = batch_of(topic=["TopicTest"], body=[b"x"], deliverTimestamp=[NOW_MS])
    assert decoded(produce(batch, routes_of(TOPIC), confs=(conf,)))[0].topic == "TopicTest"
    with pytest.raises(IllegalMessageError, match="timerWheelEnable=false"):
        produce(
            batch_of(topic=["TopicTest"], body=[b"x"], deliverTimestamp=[NOW_MS + 1]),
            routes_of(TOPIC),
            confs=(conf,),
        )


@pytest.mark.parametrize("deliver", [NOW_MS, NOW_MS - 1, 1])
def test_a_time_in_the_past_is_at_once(deliver: int) -> None:
    message = message_of(deliverTimestamp=deliver)
    assert message.topic == "TopicTest"
    # the client's: the broker leaves it in
    assert delay_properties(message) == {"TIMER_DELIVER_MS": str(deliver)}


def test_a_column_of_moments() -> None:
    moment = pa.array([(NOW_MS + 5000) * 1000 + 999], pa.timestamp("us", tz="Asia/Shanghai"))
    assert message_of(deliverTimestamp=moment).properties["TIMER_DELIVER_MS"] == str(NOW_MS + 5000)


def test_all_kinds_in_one_batch() -> None:
    batch = batch_of(
        topic=["a", "b", "a", "b"],
        body=[b"1", b"2", b"3", b"4"],
        delayTimeLevel=[None, 2, 0, None],
        deliverTimestamp=[None, None, NOW_MS + 9999, NOW_MS - 1],
        queueId=[0, 1, 2, 3],
    )
    messages = produce(batch)
    assert [
        (m.topic, m.queue_id, m.properties.get("REAL_TOPIC"), m.properties.get("REAL_QID"))
        for m in decoded(messages)
    ] == [
        ("a", 0, None, None),
        (SCHEDULE_TOPIC, 1, "b", "1"),
        (TIMER_TOPIC, 0, "a", "2"),
        ("b", 3, None, None),
    ]
    assert messages.timed.tolist() == [False, True, False, False]
    assert messages.tags_code.tolist() == [0, 5000, 0, 0]
    queues, places = messages.queues()
    assert [queues[place] for place in places] == [("a", 0), (SCHEDULE_TOPIC, 1), (TIMER_TOPIC, 0), ("b", 3)]


def test_a_delivered_message_is_not_delayed_again() -> None:
    left = {
        "DELAY": "3",
        "REAL_TOPIC": "x",
        "REAL_QID": "9",
        "TIMER_DELIVER_MS": str(NOW_MS + 5000),
        "TIMER_OUT_MS": "1",
        "TIMER_DELAY_SEC": "9",
    }
    message = message_of(properties=left | {"a": "1"}, delayTimeLevel=0)
    assert message.topic == "TopicTest"
    assert delay_properties(message) == {"a": "1"}


def test_columns_without_a_delay_change_nothing() -> None:
    nothing = {
        "delayTimeLevel": pa.array([None], pa.int32()),
        "deliverTimestamp": pa.array([None], pa.timestamp("us", tz="UTC")),
    }
    assert message_of(**nothing).topic == "TopicTest"
