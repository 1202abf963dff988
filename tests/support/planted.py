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


_ADMINISTER = "tests/store_format/commit/test_administer.py"
DATABASES = "tests/store_format/consumequeue/test_database.py"

PLANTED = (
    # ---- the format ----------------------------------------------------------------------------------------
    Planted(
        "The record `min` of a queue in RocksDB may be old: the first entry that leads into the log counts.",
        "store_format/files/rocksdb_child.py",
        "if value is None or _NUMBER.unpack_from(value)[0] < least:",
        "if value is None:",
        (f"{DATABASES}::test_cuts_are_where_a_read_of_all_entries_finds_them",),
    ),
    Planted(
        "The entries of queues in RocksDB are in the tables of one column family.",
        "store_format/files/rocksdb_tables.py",
        "if table.family != family:",
        'if table.family == b"":',
        ("tests/store_format/files/test_rocksdb_tables.py::test_the_entries_that_brokers_wrote",),
    ),
    Planted(
        "Messages behind the checkpoint of a database of queues are taken from the commitlog.",
        "store_format/survey/database_queues.py",
        "    if start >= stop:\n",
        "    if start >= 0:\n",
        ("tests/store_format/consumequeue/test_database.py::test_an_old_database_is_continued_by_the_log",),
    ),
    Planted(
        "A JSON file of configuration with a later data version than the database wins.",
        "store_format/metadata/rocksdb.py",
        "_counter(raw) <= _counter(kept.members)",
        "_counter(raw) < _counter(kept.members)",
        ("tests/store_format/metadata/test_rocksdb.py::test_a_later_file_is_merged_in",),
    ),
    Planted(
        "A body's CRC is stored without its top bit.",
        "store_format/message/single.py",
        "return crc32(buffer[start:stop]) & CRC_MASK",
        "return crc32(buffer[start:stop])",
        ("tests/store_format/message/test_check.py",),
    ),
    Planted(
        "A commitlog file keeps eight bytes for the BLANK behind its last message.",
        "store_format/commitlog/write.py",
        "limit = ends[first] + left - BLANK_SIZE_MIN",
        "limit = ends[first] + left",
        ("tests/store_format/commitlog/test_log.py",),
    ),
    Planted(
        "An entry of a DLedger commitlog has no earlier term than the entry before.",
        "store_format/commitlog/dledger.py",
        "term >= max(least, 0)",
        "term >= 0",
        ("tests/store_format/commitlog/test_dledger.py",),
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
        ("tests/store_format/index/test_file.py", "tests/store_format/index/test_file.py"),
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
        "store_format/java/text.py",
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
        "rmq_spark/consume/consumer.py",
        "part.strip(_JAVA_TRIM)",
        "part.strip()",
        ("tests/rmq_spark/consume/test_stream_offset.py",),
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
        "store_format/metadata/group_offsets.py",
        "if is_reset or offset > there.get(queue_id, -1)",
        "if is_reset or offset != there.get(queue_id, -1)",
        ("tests/store_format/metadata/test_merge_offsets.py",),
    ),
    Planted(
        "A topic that would lead out of the store, such as `..`, names no queue.",
        "store_format/consumequeue/files.py",
        'topic in ("", ".", "..")',
        'topic in ("", ".")',
        (
            "tests/store_format/survey/test_queues.py",
            "tests/store_format/commit/test_append.py::test_a_topic_that_would_leave_the_store_is_refused",
        ),
    ),
    Planted(
        "A broker leaves out a message whose queue offset is before the end of the queue.",
        "store_format/consumequeue/dispatch.py",
        "filed = stop if is_behind else min(max(first, self._filed), stop)",
        "filed = stop if is_behind else first",
        ("tests/store_format/consumequeue/test_batch.py",),
    ),
    Planted(
        "A unit begins at 20 times its queue offset, in the file that has this byte.",
        "store_format/consumequeue/updates.py",
        "position = start % end.file_size",
        "position = start % (end.file_size - _UNIT_SIZE)",
        ("tests/store_format/consumequeue/test_updates.py",),
    ),
    Planted(
        "A link below the root of a store is refused, and not followed.",
        "store_format/files/files.py",
        "refused(symbolic_link(entry.path))\n            elif entry.is_dir(follow_symlinks=False):",
        "pass\n            if entry.is_dir():",
        ("tests/test_bad_input.py::test_links_below_the_root_level_are_refused",),
    ),
    Planted(
        "A writer waits for another writer, and not for a broker.",
        "store_format/files/lock.py",
        "self._is_foreign = refused == _STORE_BYTE",
        "self._is_foreign = refused == _OWN_BYTE",
        ("tests/store_format/commit/test_append.py::test_another_writer_is_waited_for_and_no_broker",),
    ),
    Planted(
        "A name from a store is shown without control characters.",
        "store_format/display/text.py",
        "char if char.isprintable() else spelled(char)",
        "char if char.isascii() else spelled(char)",
        ("tests/store_format/display/test_text.py",),
    ),
    Planted(
        "A name from a store is text on a page, and no HTML.",
        "store_format/notebook/cards.py",
        "{text(row['topic'])}{queue}{offset}",
        "{row['topic']}{queue}{offset}",
        ("tests/store_format/notebook/test_cards.py",),
    ),
    # ---- commits and recoveries ----------------------------------------------------------------------------
    Planted(
        "A batch counts as committed if its number or a higher one of its key is.",
        "store_format/bookkeeping/ledger.py",
        "entry.number >= key[1]",
        "entry.number == key[1]",
        ("tests/store_format/commit/test_append.py::test_a_key_counts_once_and_the_ledger_does_not_grow",),
    ),
    Planted(
        "While a commit is written, a reader sees the messages before it only.",
        "store_format/bookkeeping/journal.py",
        '("begun", True, Abort.THIS, False, Reading.TO_BASE',
        '("begun", True, Abort.THIS, False, Reading.ALL',
        ("tests/store_format/bookkeeping/test_commit_states.py",),
    ),
    Planted(
        "The notes of two recoveries count each message that was given up once.",
        "store_format/bookkeeping/ledger.py",
        "found[-1][1], max(stop, found[-1][2])",
        "found[-1][1], stop",
        ("tests/store_format/bookkeeping/test_state.py",),
    ),
    Planted(
        "A commit that was broken off is repeated from the index as it was before: no key is written twice.",
        "store_format/commit/roll_forward.py",
        "    if journal.index:\n        rewind_index(",
        "    if not journal.index:\n        rewind_index(",
        ("tests/store_format/commit/test_append_crash.py::test_killed_at_each_change",),
    ),
    Planted(
        "The entry behind its queue's end that shows that a message is damaged stays.",
        "store_format/commit/queue_changes.py",
        "not queue.shows_damage(low + row, physical)",
        "not queue.shows_damage(row, physical)",
        ("tests/store_format/commit/test_queue_changes.py",),
    ),
    Planted(
        "Retention keeps a file for its whole time: it is expired when that is over.",
        "store_format/commit/expiry.py",
        "now_ms < modified + reserved_ms",
        "now_ms <= modified + reserved_ms",
        ("tests/rmq_spark/broker/services/test_clean.py::test_how_many_files_one_round_deletes",),
    ),
    Planted(
        "A recovery looks at the last ten files of the commitlog.",
        "store_format/survey/log_end.py",
        "max(newest + 1 - _RECOVER_FILES_MAX, 0)",
        "max(newest - _RECOVER_FILES_MAX, 0)",
        ("tests/store_format/read/test_recovery.py",),
    ),
    Planted(
        "Only a 5.x broker removes the offsets of a deleted topic: those of a 4.9 show no lost queue.",
        "store_format/survey/fates.py",
        "if offsets is None or offsets.data_version is None:",
        "if offsets is None:",
        ("tests/store_format/survey/test_fates.py",),
    ),
    Planted(
        "Whether a topic was deleted or a queue was lost is asked (unfiledQueues), and not guessed.",
        "store_format/survey/fates.py",
        "found[key] = _UNKNOWN",
        "found[key] = _SIBLING",
        ("tests/store_format/survey/test_fates.py",),
    ),
    # ---- what readers see ----------------------------------------------------------------------------------
    Planted(
        "The log's end lies behind its last message: an entry that leads there leads nowhere.",
        "store_format/diagnose/entry_check.py",
        "behind = current & (physical >= targets.end)",
        "behind = current & (physical > targets.end)",
        ("tests/store_format/diagnose/test_diagnose.py",),
    ),
    Planted(
        "The tags code of a delayed message is a time, by which no message is left out.",
        "store_format/read/queue_reader.py",
        "kept = timed | np.isin(",
        "kept = ~timed & np.isin(",
        ("tests/rmq_spark/plan/test_filtering.py::test_tags_are_compared_by_text",),
    ),
    Planted(
        "A search by key finds what was stored before `until`, and not at that ms.",
        "store_format/search/look_up.py",
        "keep &= times < self.choice.until_ms",
        "keep &= times <= self.choice.until_ms",
        ("tests/store_format/search/test_look_up.py::test_topic_time_and_tags_narrow_an_id",),
    ),
    Planted(
        "The last message that a group has consumed is the one before its committed offset.",
        "store_format/views/lag.py",
        "time_at((following if first == start else first) - 1)",
        "time_at(following if first == start else first)",
        ("tests/store_format/views/test_lag.py",),
    ),
    Planted(
        "A look sees a message behind the end of the last look, although no file has another length.",
        "store_format/follow/follower.py",
        "            and read_head(self._log, self._end) == self._head\n",
        "",
        (
            "tests/store_format/follow/test_follower.py::test_beside_a_broker_each_look_lies_between_two_batches",
        ),
    ),
    Planted(
        "A queue that is popped in order is blocked until its messages are visible, and free at that ms.",
        "store_format/pop/order.py",
        "return now_ms < _unblocked_at(info, invisible_ms)",
        "return now_ms <= _unblocked_at(info, invisible_ms)",
        ("tests/store_format/pop/test_order_state.py",),
    ),
    Planted(
        "A comparison of stores counts the copies of a message that left in pairs.",
        "store_format/views/diff_parts.py",
        " + left_before",
        "",
        ("tests/store_format/views/test_diff.py",),
    ),
    Planted(
        "The properties that a broker adds make no difference between messages.",
        "store_format/views/message_digests.py",
        'CRC_PROPERTY_NAME.decode(), "MSG_REGION",',
        "CRC_PROPERTY_NAME.decode(),",
        ("tests/store_format/views/test_diff.py",),
    ),
    # ---- the broker's work, Spark, and the command ---------------------------------------------------------
    Planted(
        "News wake every consumer that waits for them.",
        "rmq_spark/broker/pop/waiting.py",
        "self._condition.notify_all()",
        "self._condition.notify()",
        ("tests/rmq_spark/broker/pop/test_waiting.py::test_threads_share_a_waiter",),
    ),
    Planted(
        "A delayed message is delivered at the ms at which it is due.",
        "rmq_spark/broker/services/schedule.py",
        "later = np.flatnonzero(times > level.now_ms)",
        "later = np.flatnonzero(times >= level.now_ms)",
        ("tests/rmq_spark/broker/services/test_schedule.py",),
    ),
    Planted(
        "A new handler begins at the message at which the last one has failed.",
        "rmq_spark/consume/orderly.py",
        "stop is None or offset >= stop.offset",
        "stop is None or offset > stop.offset",
        ("tests/rmq_spark/consume/test_orderly.py",),
    ),
    Planted(
        "A member begins a queue at the furthest of its checkpoint and of what the group has recorded.",
        "rmq_spark/consume/group/member.py",
        "checkpoint > (-1 if position is None else position)",
        "checkpoint < (-1 if position is None else position)",
        (
            "tests/rmq_spark/consume/group/test_member.py::test_the_start_is_the_furthest_of_checkpoint_record_and_group",
        ),
    ),
    Planted(
        "A count is a whole number from 1.",
        "rmq_spark/options/option.py",
        "not 1 <= int(word) < 1 << 31",
        "not 0 <= int(word) < 1 << 31",
        ("tests/rmq_spark/options/test_parse.py", "tests/rmq_spark/options/test_read_options.py"),
    ),
    Planted(
        "A group reads its retry topic, whatever topics it subscribes to.",
        "rmq_spark/plan/starts.py",
        "if topic == retry or choice.chooses_queue(topic, broker, n)",
        "if choice.chooses_queue(topic, broker, n)",
        ("tests/rmq_spark/plan/test_starts.py",),
    ),
    Planted(
        "minOffsetsPerTrigger is enough: as many messages do not wait.",
        "rmq_spark/stream/plan.py",
        "waiting < self.limits.min_offsets",
        "waiting <= self.limits.min_offsets",
        ("tests/rmq_spark/stream/test_plan.py",),
    ),
    Planted(
        "A topic that several tasks create gets as many queues as the largest of them needs.",
        "rmq_spark/write/stage_and_commit.py",
        "new_topics |= Counter(dict(each.new_topics))",
        "new_topics = Counter(dict(new_topics) | dict(each.new_topics))",
        (
            "tests/rmq_spark/write/test_stage_and_commit.py::test_a_new_topic_gets_the_queues_that_any_task_needs",
        ),
    ),
    Planted(
        "An option that takes one value and is given twice is refused.",
        "rmq_spark/cli/repeated.py",
        "order.count(option) > 1",
        "order.count(option) > 2",
        ("tests/cli/test_hints.py",),
    ),
    Planted(
        "A search for several keys in Python has each message once.",
        "rmq_spark/python_search.py",
        "table = rows.take(pa.array([seen[place] for place in sorted(seen)], pa.int64()))",
        "table = rows",
        ("tests/rmq_spark/test_python_search.py",),
    ),
    Planted(
        "The lag of a group is measured again when the group commits an offset.",
        "rmq_spark/metrics/lag_memory.py",
        "and before.signature == signature",
        "and before.signature is not None",
        ("tests/rmq_spark/metrics/test_lag_memory.py",),
    ),
    Planted(
        "The exit code tells a store in use from one that is damaged or not there.",
        "rmq_spark/cli/main.py",
        "(StoreInUseError, IN_USE)",
        "(StoreInUseError, IO)",
        ("tests/cli/test_exit_codes.py",),
    ),
    Planted(
        "A column that has no null is declared NOT NULL to Spark.",
        "rmq_spark/spark/types.py",
        "_spark_type(field.type), field.nullable)",
        "_spark_type(field.type))",
        ("tests/rmq_spark/spark/test_message_schema.py",),
    ),
    Planted(
        "A bucket of delays ends one ms before the next one.",
        "rmq_spark/charts/data.py",
        "(1 << powers) - 1, buckets)",
        "1 << powers, buckets)",
        ("tests/rmq_spark/charts/test_charts.py::test_delays_are_counted_between_their_bounds",),
    ),
    Planted(
        "Messages that a broker has not copied to compaction/ yet are read from the commitlog.",
        "store_format/read/served.py",
        "parts += [rest] if rest.entries else []",
        "parts += []",
        (
            "tests/store_format/read/test_compacted.py::test_messages_that_were_not_copied_yet_come_from_the_log",
        ),
    ),
    Planted(
        "A mark ends the entries of a full log file of a compacted topic.",
        "store_format/consumequeue/compacted.py",
        "stop_of_rest = stop + (is_last or is_marked)",
        "stop_of_rest = stop + is_last",
        ("tests/store_format/read/test_compacted.py::test_a_mark_ends_the_entries_of_a_full_log_file",),
    ),
    Planted(
        "Entries whose log file a round of compaction has replaced already are not read.",
        "store_format/consumequeue/compacted.py",
        "            _check_moved(log_directory, queue_directory)\n",
        "",
        ("tests/store_format/read/test_compacted.py::test_files_that_a_round_moves_are_looked_at_again",),
    ),
    Planted(
        "Of uploaded messages with one time, a search for the LOWER offset finds the first.",
        "store_format/consumequeue/tiered.py",
        'step = -1 if boundary == "LOWER" else 1',
        'step = 1 if boundary == "LOWER" else -1',
        ("tests/store_format/read/test_tiered.py::test_bounds_and_offsets_by_time",),
    ),
    Planted(
        "A 5.x topic that is deleted takes its retry topics of pop along.",
        "store_format/commit/administer.py",
        "return [self.name, *dict.fromkeys(found)]",
        "return [self.name]",
        (f"{_ADMINISTER}::test_a_5_x_topic_takes_its_offsets_and_retry_topics_of_pop_along",),
    ),
    Planted(
        "The messages of a topic that was deleted stay deleted when the topic is created again.",
        "store_format/survey/fates.py",
        "return noted.get(topic, -1) + 1",
        "return 0",
        (f"{_ADMINISTER}::test_a_topic_that_is_deleted_and_created_again_begins_at_0",),
    ),
)
