"""Small defects that the tests must catch, such as a person makes by mistake: one for each room, and for the
rules of RocketMQ that matter most.

`tests/test_planted.py` plants one after the other into a copy of the project. When code moves, the file and
the text move with it; when a rule goes, its defect goes.
"""

from __future__ import annotations

from typing import NamedTuple


class Planted(NamedTuple):
    """The text `old`, which `file` contains once, becomes `new`: then one of `tests` must fail.

    `rule` says what the product does without the defect. `tests` are files or node ids.
    """

    rule: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


PLANTED = (
    # ---- the format ----------------------------------------------------------------------------------------
    Planted(
        "A body's CRC is stored without its top bit.",
        "store_format/message/one.py",
        "return crc32(buffer[start:stop]) & CRC_MASK",
        "return crc32(buffer[start:stop])",
        ("tests/store_format/message/test_check.py",),
    ),
    Planted(
        "A commitlog file keeps eight bytes for the BLANK behind its last message.",
        "store_format/commitlog/write.py",
        "limit = ends[first] + left - BLANK_SIZE_MIN",
        "limit = ends[first] + left",
        ("tests/store_format/commitlog/test_place.py",),
    ),
    Planted(
        "A pre-blank unit takes a place in its queue, and is no message.",
        "store_format/consumequeue/units.py",
        "return valid_units(units) & ~pre_blank_mask(units)",
        "return valid_units(units)",
        ("tests/store_format/consumequeue/test_simple.py",),
    ),
    Planted(
        "The hash -2^31 of an index key, which has no absolute value in 32 bits, counts as 0.",
        "store_format/index/file.py",
        "return 0 if value == 1 << 31 else value",
        "return value",
        ("tests/store_format/index/test_keys.py", "tests/store_format/index/test_file.py"),
    ),
    Planted(
        "An index unit stores whole seconds after the file's first message.",
        "store_format/kernels/index_entries.py",
        "(timestamps[message] - begin) // 1000",
        "(timestamps[message] - begin) // 1024",
        ("tests/store_format/index/test_updates.py",),
    ),
    Planted(
        "A message may end at the last byte of what is read.",
        "store_format/kernels/walk.py",
        "size > len(buffer) - at",
        "size >= len(buffer) - at",
        ("tests/store_format/kernels/test_walk.py",),
    ),
    Planted(
        "A Java hash is signed: from 2^31 on it is negative.",
        "store_format/java/hashes.py",
        "if value >> 31 else value",
        "if value > 1 << 31 else value",
        ("tests/store_format/java/test_hashes.py",),
    ),
    # ---- RocketMQ's semantics ------------------------------------------------------------------------------
    Planted(
        "In SQL92, NOT of an unknown value is unknown.",
        "rmq_spark/consume/sql92/machine.py",
        '(_NOT,) = _truth_table("TFUE")',
        '(_NOT,) = _truth_table("TFTE")',
        ("tests/rmq_spark/consume/sql92/test_sql92.py",),
    ),
    Planted(
        "Tags are trimmed as Java trims them: a full-width space belongs to the tag.",
        "rmq_spark/consume/tag_filter.py",
        "part.strip(_JAVA_TRIM)",
        "part.strip()",
        ("tests/rmq_spark/consume/test_tag_filter.py",),
    ),
    Planted(
        "The first name of a pop retry topic joins group and topic with `_`, the second with `+`.",
        "store_format/names.py",
        "{'+' if is_v2 else '_'}",
        "{'_' if is_v2 else '+'}",
        ("tests/store_format/test_names.py",),
    ),
    Planted(
        "Messages of delay level n wait in queue n - 1.",
        "rmq_spark/produce/delays.py",
        "np.where(scheduled, level - 1, np.where(",
        "np.where(scheduled, level, np.where(",
        ("tests/rmq_spark/produce/test_delays.py",),
    ),
    Planted(
        "A committed message names the physical offset of its half message.",
        "rmq_spark/produce/half.py",
        "prepared_transaction_offset=halves.physical_offsets",
        "prepared_transaction_offset=halves.queue_offsets",
        ("tests/rmq_spark/produce/test_half.py",),
    ),
    Planted(
        "A message that was delivered again as often as allowed becomes a dead letter.",
        "rmq_spark/produce/send_back.py",
        "is_dead = (times >= times_max)",
        "is_dead = (times > times_max)",
        ("tests/rmq_spark/produce/test_send_back.py",),
    ),
    Planted(
        "AVG gives one queue more to as many clients as queues are left over.",
        "rmq_spark/consume/allocate.py",
        "start : start + size + (index < rest)",
        "start : start + size + (index <= rest)",
        ("tests/rmq_spark/consume/test_allocate.py",),
    ),
    Planted(
        "Only a reset lowers a committed offset.",
        "store_format/metadata/merge_offsets.py",
        "if is_reset or offset > there.get(queue_id, -1)",
        "if is_reset or offset != there.get(queue_id, -1)",
        ("tests/store_format/metadata/test_merge_offsets.py",),
    ),
)
