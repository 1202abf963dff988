"""What brokers leave behind: each function without a leading `_` is a shape of a store, which appends
messages to a `BrokerStore` as a broker of some release has done it. No shape is damage.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from types import FunctionType

from tests.support import oracle
from tests.support.referee.made import SCHEDULED, BrokerStore

Shape = Callable[[BrokerStore, Random], None]


def plain(store: BrokerStore, random: Random) -> None:
    _fill(store, random, random.randint(10, 70))


def _fill(store: BrokerStore, random: Random, count: int) -> None:
    for _ in range(count):
        topic, queues = random.choice([("A", 2), ("A", 2), ("B", 1)])
        store.put(topic, random.randrange(queues))


def _and_more(store: BrokerStore, random: Random) -> None:
    if random.random() < 0.5:
        _fill(store, random, random.randint(1, 20))


def long(store: BrokerStore, random: Random) -> None:
    """Many entries in a file, so that a search of it has several probes."""
    store.queue_entries = 256
    store.conf["mappedFileSizeConsumeQueue"] = str(256 * 20)
    for _ in range(random.randint(100, 200)):
        store.put("A", 0)


# ---- two messages with one offset -------------------------------------------------------------------------


def pair_at_the_end(store: BrokerStore, random: Random) -> None:
    """Controller mode: a new master repeats the offset of the last message."""
    _fill(store, random, random.randint(3, 30))
    store.put("A", 0)
    store.put("A", 0, offset=store.next_offset("A", 0) - 1)
    if random.random() < 0.3:
        store.put("B")


def pair(store: BrokerStore, random: Random) -> None:
    _fill(store, random, random.randint(3, 30))
    store.put("A", 0)
    store.put("A", 0, offset=store.next_offset("A", 0) - 1)
    _fill(store, random, random.randint(1, 30))


def pair_at_the_beginning(store: BrokerStore, random: Random) -> None:
    store.put("A", 0)
    store.put("A", 0, offset=0)
    _and_more(store, random)


def pairs_of_a_batch(store: BrokerStore, random: Random) -> None:
    """4.8: a batch that was tried again claims the offsets of the first try."""
    _fill(store, random, random.randint(3, 20))
    count = random.randint(2, 5)
    for _ in range(count):
        store.put("A", 0)
    at = store.next_offset("A", 0) - count
    for number in range(count):
        store.put("A", 0, offset=at + number)
    _and_more(store, random)


def pair_that_is_not_filed(store: BrokerStore, random: Random) -> None:
    """The broker was killed before it dispatched the last messages; two of them claim one offset."""
    _fill(store, random, random.randint(3, 30))
    store.put("A", 0, files=False)
    store.put("A", 0, offset=store.next_offset("A", 0) - 1, files=False)
    if random.random() < 0.5:
        store.put("A", 0, files=False)


def gap(store: BrokerStore, random: Random) -> None:
    """Controller mode: offsets that no message has."""
    _fill(store, random, random.randint(3, 20))
    store.put("A", 0, offset=store.next_offset("A", 0) + random.randint(1, 5))
    _and_more(store, random)


# ---- lives ------------------------------------------------------------------------------------------------


def not_filed(store: BrokerStore, random: Random) -> None:
    """A kill before the last messages were dispatched."""
    _fill(store, random, random.randint(3, 30))
    for _ in range(random.randint(1, 6)):
        store.put(random.choice("AB"), 0, files=False)


def created_again(store: BrokerStore, random: Random) -> None:
    """A topic was deleted and created again, and has messages."""
    _fill(store, random, random.randint(5, 30))
    store.restart("A")
    _fill(store, random, random.randint(8, 30))


def created_again_shorter(store: BrokerStore, random: Random) -> None:
    for _ in range(random.randint(5, 20)):
        store.put("A", 0)
    store.put("B")
    store.restart("A")
    for _ in range(random.randint(1, 4)):
        store.put("A", 0)
    if random.random() < 0.5:
        store.put("B")


def created_again_empty(store: BrokerStore, random: Random) -> None:
    """Nothing shows whether the topic was deleted or its queue files were lost."""
    _fill(store, random, random.randint(5, 30))
    for topic in random.choice([("A",), ("A", "B")]):
        store.put(topic)
        store.restart(topic)


def only_topic_created_again_empty(store: BrokerStore, random: Random) -> None:
    for _ in range(random.randint(1, 30)):
        store.put("A", 0)
    store.restart("A")


def deleted(store: BrokerStore, random: Random) -> None:
    _fill(store, random, random.randint(5, 30))
    store.restart("A")
    store.topics.pop("A", None)
    store.put("B")


def only_topic_deleted(store: BrokerStore, random: Random) -> None:
    for _ in range(random.randint(1, 30)):
        store.put("A", 0)
    store.restart("A")
    store.topics.pop("A")
    store.topic("TBW102", 8)  # a broker's topics.json is never empty


def offsets_begin_again(store: BrokerStore, random: Random) -> None:
    """Configuration of another cluster: the offsets of a queue begin at 0 again, its files stay."""
    _fill(store, random, random.randint(3, 20))
    store.restart("A", keeps_queues=True)
    for _ in range(random.randint(1, 5)):
        store.put("A", 0)


# ---- kinds of messages ------------------------------------------------------------------------------------


def _light(store: BrokerStore, *named: tuple[str, int]) -> None:
    properties = {
        "INNER_MULTI_DISPATCH": ",".join(f"%LMQ%{name}" for name, _ in named),
        "INNER_MULTI_QUEUE_OFFSET": ",".join(str(offset) for _, offset in named),
    }
    store.put("Parent", 0, properties=properties)


def light(store: BrokerStore, random: Random) -> None:
    store.conf |= {"enableLmq": "true", "enableMultiDispatch": "true"}
    ends = {"a": 0, "b": 0}
    for _ in range(random.randint(2, 25)):
        names = random.choice([("a",), ("b",), ("a", "b")])
        _light(store, *((name, ends[name]) for name in names))
        for name in names:
            ends[name] += 1
    _and_more(store, random)


def light_pair(store: BrokerStore, random: Random) -> None:
    """5.1.4: a light queue gives an offset twice."""
    store.conf |= {"enableLmq": "true", "enableMultiDispatch": "true"}
    twice, count = random.randint(0, 6), random.randint(7, 12)
    for at in range(count):
        _light(store, ("a", at))
        if at == twice:
            _light(store, ("a", at))


def light_without_the_setting(store: BrokerStore, random: Random) -> None:
    """A producer's own INNER_MULTI_DISPATCH: a broker with the default settings makes no light queue."""
    for at in range(random.randint(1, 8)):
        _light(store, ("a", at * random.choice([1, 3])))
    _and_more(store, random)


def inner_batches(store: BrokerStore, random: Random) -> None:
    store.topic("Inner", 1, {"queue.type": "BatchCQ"})
    for _ in range(random.randint(2, 20)):
        count = random.randint(1, 4)
        if count == 1:
            store.put("Inner", 0)
        else:
            store.put_batch("Inner", count)
    _and_more(store, random)


def delayed(store: BrokerStore, random: Random) -> None:
    store.levels = random.choice(["", "", "2h 3h 4h"])
    if store.levels:
        store.conf["messageDelayLevel"] = store.levels
    store.topic(SCHEDULED, 18)
    for _ in range(random.randint(3, 25)):
        level = random.randint(1, 3)
        named = {"DELAY": str(level), "REAL_TOPIC": "A", "REAL_QID": "0"}
        store.put(SCHEDULED, level - 1, properties=named)
    _and_more(store, random)


def transactions(store: BrokerStore, random: Random) -> None:
    for number in range(random.randint(3, 25)):
        store.put("RMQ_SYS_TRANS_HALF_TOPIC", properties={"REAL_TOPIC": "A", "REAL_QID": "0", "PGROUP": "p"})
        if number % 2:
            store.put("A", 0, sys_flag=0x8, prepared_transaction_offset=store.messages[-1].physical_offset)
    _and_more(store, random)


def compressed(store: BrokerStore, random: Random) -> None:
    for number in range(random.randint(3, 25)):
        kind = random.choice([2, 3])  # an LZ4 frame of pyarrow has linked blocks, which Java refuses
        store.put("A", 0, body=oracle.compress(b"%d zzzz" % number * 30, kind), sys_flag=1 | kind << 8)


def extended(store: BrokerStore, random: Random) -> None:
    """enableConsumeQueueExt: entries lead to a file beside the queue, which has the tags code."""
    store.conf |= {"enableConsumeQueueExt": "true", "mappedFileSizeConsumeQueueExt": str(1 << 12)}
    _fill(store, random, random.randint(3, 30))


def _shapes() -> dict[str, Shape]:
    return {
        name: value
        for name, value in globals().items()
        if isinstance(value, FunctionType) and value.__module__ == __name__ and name[0] != "_"
    }


SHAPES = _shapes()
# Nothing on disk says whether the topic was deleted or its queue files were lost.
MUST_ASK = {"created_again_empty", "only_topic_created_again_empty"}
MAY_ASK = MUST_ASK | {"deleted", "only_topic_deleted"}
