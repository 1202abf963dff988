"""`lag`: a row for each group and topic, worst first; -l a row for each queue; pop; RocketMQ's own groups."""

from __future__ import annotations

from tests.support import goldens
from tests.support.cli_runs import Runner
from tests.support.fixtures import Golden

STORE, CLEANED, CLUSTER = "basic-5.5.0", "cleaned-5.5.0", "cluster-5.5.0"
NOW_MS = 1_900_000_000_000
NOW = ("--now", NOW_MS)


def test_the_next_loss_is_that_of_the_files_that_expire_first(rmqlog: Runner, golden: Golden) -> None:
    store = golden(CLEANED)
    rows = rmqlog.rows("lag", store, *NOW, "--all")
    found = {(row["group"], row["topic"]): row for row in rows if row["expiresInMs"] is not None}
    assert len(found) >= 3
    # All files but the last one have expired at NOW: what is lost is all that is not in the last file.
    last = max(int(file.name) for file in (store / "commitlog").iterdir())
    committed = goldens.expected(CLEANED)["consumerOffset"]["offsetTable"]
    for (group, topic), row in found.items():
        offsets = {int(queue): offset for queue, offset in committed[f"{topic}@{group}"].items()}
        old = [each for each in goldens.expected_rows(CLEANED) if each["physicalOffset"] < last]
        unread = [
            each["queueOffset"] >= offsets.get(each["queueId"], 1 << 60)
            for each in old
            if each["topic"] == topic
        ]
        assert row["nextLostMessages"] == sum(unread) > 0, (group, topic)
    instant, said = rmqlog("lag", store, *NOW).err.splitlines()
    assert instant.endswith(f" ({NOW_MS})")
    assert said == (
        f"rmqlog: unread messages of {len({group for group, _ in found})} groups have expired, "
        f"and are deleted at the next deleteWhen: rmqlog retention {store}"
    )
    assert rmqlog("lag", store, *NOW, "-o", "json").err == f"{instant}\n"
    assert rmqlog("lag", golden("retry-dlq-5.5.0"), *NOW).err == f"{instant}\n"


def test_the_queues_are_the_broker_s_and_unknown_is_empty(rmqlog: Runner, golden: Golden) -> None:
    committed = goldens.expected(STORE)["consumerOffset"]["offsetTable"]
    rows = rmqlog.rows("lag", golden(STORE), *NOW, "-l", "-g", "CG_some", "-t", "Orders")
    queues = goldens.expected(STORE)["queues"]
    maxima = {queue["queueId"]: queue["maxOffset"] for queue in queues if queue["topic"] == "Orders"}
    assert {str(row["queueId"]): row["committedOffset"] for row in rows} == committed["Orders@CG_some"]
    assert all(row["lagMessages"] == maxima[row["queueId"]] - row["committedOffset"] for row in rows)
    retry = rmqlog.rows("lag", golden(STORE), *NOW, "--queues", "-g", "CG_some", "-t", "%RETRY%*")
    assert [(row["committedOffset"], row["lagMessages"]) for row in retry] == [(None, None)]
