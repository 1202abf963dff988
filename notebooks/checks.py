"""What each notebook must have found: code that runs after the last cell, and is not kept in the notebook."""

from __future__ import annotations

CHECKS = {
    "01_tour": """
in_arrow = sum(
    queue.max_offset - queue.min_offset
    for queue in store.queues()
    if not queue.topic.startswith(("%", "SCHEDULE", "RMQ_SYS"))
)
assert messages.count() == in_arrow > 7000
assert sales.toPandas()["amount"].sum().round(2) == paid["amount"].sum().round(2) > 0
spark.stop()
""",
    "02_one_lost_order": """
assert len({copy["body"] for copy in copies}) == 1
topics = {copy["topic"] for copy in copies}
assert topics == {"Orders", "SCHEDULE_TOPIC_XXXX", "%RETRY%CG_mail", "%DLQ%CG_mail"}
assert nothing.table.num_rows == 0
assert {row["state"] for row in store.view("transactions").to_pylist()} == {"pending"}
""",
    "03_crash_forensics": """
assert diagnosis.of("damage") == [] and diagnosis.of("warning")
assert diagnosis.summary.log_end == last_at
assert code == 3
assert problems.of("damage")
assert len(before - after) == 3 and not after - before
""",
    "04_lag_and_capacity": """
assert {row["group"] for row in lag.to_pylist() if row["lagMessages"]} == {"CG_report", "CG_search"}
assert sum(retention["nextLostMessages"].to_pylist()) > 0
assert min(row["lagMessages"] for row in before.to_pylist()) > 500
""",
    "05_exactly_once": """
assert bodies(there) == bodies(here)
assert before == in_the_log() == (orders + 3, orders + 3)
assert len(again) == 1
drawn = [[row["orders"] for row in rows if row["place"] == name] for name in times]
assert drawn[0] == drawn[1] == drawn[2] and sum(drawn[0]) == orders
assert list(copied.diagnose()) == []
spark.stop()
""",
    "06_the_format_under_a_microscope": """
assert zlib.crc32(body) & 0x7FFFFFFF == int(head["body_crc"]) == message["bodyCRC"]
assert (int(unit["physical_offset"]), int(unit["size"])) == (at, size)
assert int(unit["tags_code"]) == java_hash(message["tags"])
assert topic == b"Orders"
assert any(row["keyHash"] == hashed and row["physicalOffset"] == at for row in chain)
assert code == 0
""",
    "07_one_group_four_readers": """
names = sorted({row["step"] for row in steps})
owners = {step: [row["reader"] for row in steps if row["step"] == step] for step in names}
assert {len(each) for each in owners.values()} == {len(ends)}
assert [len(set(owners[step])) for step in names] == [1, 3, 4, 3, 2, 1]
read = [row for row in lag.to_pylist() if row["group"] == "CG_shared" and row["topic"] == "Orders"]
assert {row["queueId"]: row["committedOffset"] for row in read} == ends
spark.stop()
""",
}
