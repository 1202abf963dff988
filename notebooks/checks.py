"""What each notebook must have found: code that runs after the last cell, and is not kept in the notebook."""

from __future__ import annotations

CHECKS = {
    "01_tour": """
in_arrow = sum(
    queue.max_offset - queue.min_offset
    for queue in store.queues()
    if not queue.topic.startswith(("%", "SCHEDULE"))
)
assert messages.count() == in_arrow == 2005
spark.stop()
""",
    "02_one_lost_order": """
assert len({copy["body"] for copy in copies}) == 1
states = set(found.table["topic"].to_pylist())
assert states == {"Jobs", "SCHEDULE_TOPIC_XXXX", "%RETRY%CG_fail", "%DLQ%CG_fail"}
assert nothing.table.num_rows == 0
""",
    "03_crash_forensics": """
assert summary.total_bytes == sum(file.size for file in crashed.log.files)
assert len(before) - len(after) == written - left
assert not after.keys() - before.keys()
assert {problem.severity for problem in diagnosis} >= {"damage"}
""",
    "04_lag_and_capacity": """
assert {row["group"] for row in lag.to_pylist() if row["lagMessages"]} == {"CG_report", "CG_search"}
assert sum(retention["nextLostMessages"].to_pylist()) > 0
assert min(row["lagMessages"] for row in before.to_pylist()) > 500
""",
    "05_exactly_once": """
assert bodies == wanted
assert before == in_the_log() == (orders + 3, orders + 3)
assert len(again) == 1
assert list(copied.diagnose()) == []
spark.stop()
""",
    "06_the_format_under_a_microscope": """
assert zlib.crc32(body) & 0x7FFFFFFF == int(head["body_crc"]) == message["bodyCRC"]
assert (int(unit["physical_offset"]), int(unit["size"])) == (at, size)
assert int(unit["tags_code"]) == java_hash(message["tags"])
assert any(same and offset == at for _, _, offset, same in chain)
assert blank["magic"] == layouts.MAGIC_BLANK
assert code == 0
""",
}
