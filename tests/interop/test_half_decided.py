"""What we have decided, a broker neither asks about again nor delivers a second time.

The golden store has half messages that its broker stored again up to ten times. Two of them are decided
under their first copies.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from rmq_spark.services import HalfMessage, transaction
from store_format import MessageStore
from tests.interop.harness import RocketMQ
from tests.interop.same import HALF, OP
from tests.interop.workload import now_ms, until
from tests.support import goldens
from tests.support.fixtures import Golden
from tests.support.halves import checker_offsets, states, visible

_SETTINGS = {
    "transactionTimeOut": "100",
    "transactionCheckMax": "15",
    "transactionCheckInterval": "3600000",
}


def test_a_broker_does_not_ask_about_what_we_decided(
    rocketmq: Callable[[str], RocketMQ], golden: Golden, tmp_path: Path
) -> None:
    """By name and by a check; then as if we had been killed before we wrote the checker's offsets."""
    java, root = rocketmq("5.5.0"), Path(shutil.copytree(golden("delay-tx-5.5.0"), tmp_path / "store"))
    told = goldens.config("delay-tx-5.5.0") | _SETTINGS
    conf = java.config_file(root, told)
    offsets = (root / "config" / "consumerOffset.json").read_bytes()
    was_visible, before = visible(root, "Tx"), states(root)
    pending = sorted(name for name, state in before.items() if state == "pending")
    named = transaction.decide(
        str(root), commit=pending[:2], rollback=pending[2:4], now_ms=now_ms(), broker_conf=conf
    )
    assert named.apply() == 4
    ended = dict.fromkeys(pending[:2], "committed") | dict.fromkeys(pending[2:4], "rolled back")
    asked: list[str] = []

    def decide(half: HalfMessage) -> str:
        asked.append(str(half.msg_id))
        ended[asked[-1]] = "committed" if len(asked) % 2 else "rolled back"
        return "commit" if len(asked) % 2 else "rollback"

    assert transaction.check(str(root), decide, now_ms(), broker_conf=conf).apply() == 12
    assert sorted(asked) == pending[4:]
    (root / "config" / "consumerOffset.json").write_bytes(offsets)
    assert checker_offsets(root) == (259, 3)
    halves = MessageStore.open(str(root)).queue(HALF, 0).max_offset
    assert halves == 259 + 18 + 12
    with java.broker(root, told) as broker:
        client = broker.client()
        client.ask("tx-open", "PG_tx", "Tx")
        (new,) = client.ask("tx-send", "Tx", 1, "unknown", "commit@1")  # to see that the broker does ask
        time.sleep(0.2)
        broker.check()
        until(lambda: client.ask("tx-checks"), lambda lines: len(lines) == 1, "the new half is asked about")
        until(lambda: client.ends([OP])[OP, 0][1], lambda stop: stop > 5, "and decided")
        broker.check()
        assert client.ends([HALF])[HALF, 0][1] == halves + 2
        client.program.kill()
    wanted = before | ended
    assert visible(root, "Tx") == sorted(
        [*was_visible, new["uniqKey"], *(name for name, state in ended.items() if state == "committed")]
    )
    assert states(root) == wanted | {new["uniqKey"]: "committed"}
    assert set(Counter(visible(root, "Tx")).values()) == {1}
