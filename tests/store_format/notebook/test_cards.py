"""Pages about hostile and healthy stores: nothing but what this package makes, text spelled out, an end with
a note.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store_format.display.columns import batch_of
from store_format.display.page import SIZE_MAX, Html, body, text
from store_format.display.text import shown
from store_format.display.units import size_text
from store_format.errors import StoreError
from store_format.notebook.cards import message_cards, store_card, table_card, timeline, view_card
from store_format.store import MessageStore
from store_format.views.registry import VIEWS
from store_format.views.trace import TRACE_COLUMNS
from tests.support import goldens
from tests.support.file_edits import overwrite
from tests.support.fixtures import Golden, Unchanged
from tests.support.hostile_store import (
    HOSTILE_ID,
    HOSTILE_PROPERTIES,
    HOSTILE_TOPIC,
    damage_files,
    write_hostile_store,
)
from tests.support.html_check import Page, read_page
from tests.support.stored_rows import rows_in

NOW = 1_800_000_000_000
WARNING = "w"
SINGLE = [name for name in goldens.NAMES if "brokers" not in goldens.expected(name)]


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> MessageStore:
    return MessageStore.open(str(write_hostile_store(tmp_path_factory.mktemp("hostile") / "store\x1b[2J<i>")))


def _forms(store: MessageStore) -> Iterator[tuple[str, str]]:
    """Every form that a store has."""
    yield "store", store._repr_html_()
    yield "diagnosis", store.diagnose()._repr_html_()
    for queue in store.queues()[:4]:
        yield "queue", queue._repr_html_()
    for view in VIEWS:
        yield view.name, view_card(store, view.name, now_ms=NOW).source


# ---- text --------------------------------------------------------------------------------------------------


@given(st.text(max_size=200))
def test_text_is_seen_as_it_is_spelled(value: str) -> None:
    assert read_page(text(value), is_whole=False).text == shown(value)


@given(st.binary(max_size=300), st.booleans())
def test_a_body_is_seen_whole_or_with_a_note(value: bytes, lines: bool) -> None:
    page = read_page(body(value, 200, lines=lines), is_whole=False)
    assert page.text.endswith(f"… {len(value):,} bytes, the first 200 shown") == (len(value) > 200)


def test_what_is_spelled_out_is_marked() -> None:
    assert text("a\\x1b") == "a\\x1b"  # as it was written
    assert text("a\x1b") == 'a<span class="e">\\x1b</span>'
    marked = '<bdi>a<span class="e">\\xff</span>é<span class="e">\\n</span></bdi>'
    assert body(b"a\xff\xc3\xa9\n", 9) == marked
    assert body(b"a\nb", 9, lines=True) == "<bdi>a\nb</bdi>"


def test_a_cut_body_does_not_end_in_half_a_character() -> None:
    assert body("aaé".encode() + b"b", 3).startswith("<bdi>aa<span")
    assert "\\xc3" not in body("aaé".encode() + b"b", 3)


def test_names_written_from_right_to_left_stay_in_their_place() -> None:
    assert text("عربى") == "<bdi>عربى</bdi>"
    assert text("a\u202eb") == '<bdi>a<span class="e">\\u202e</span>b</bdi>'


def test_long_text_says_its_length() -> None:
    assert text("x" * 1000, 5) == 'xxxxx<span class="c">… 1,000 characters</span>'


# ---- a hostile store ---------------------------------------------------------------------------------------


def test_every_form_of_a_hostile_store(hostile: MessageStore) -> None:
    seen = {name: read_page(source).text for name, source in _forms(hostile)}
    for name in ("store", "queue", "topics", "queues", "usage"):
        assert shown(HOSTILE_TOPIC)[:20] in seen[name], name
    assert shown(hostile.path) in seen["store"]
    assert "… 4,194,304 bytes, the first 80 shown" in seen["queue"]


def test_hostile_messages(hostile: MessageStore) -> None:
    page = read_page(message_cards(rows_in(hostile)).source)
    assert "… 4,194,304 bytes, the first 1,024 shown" in page.text
    assert r"\xff\xfe\x1b[2J</pre></style><script>alert('body')</script><img src=x onerror=" in page.text
    assert r"\u202etxt.exe" in page.text
    for name, value in HOSTILE_PROPERTIES:
        assert shown(name) + shown(value) in page.text


def test_a_hostile_message_is_found_and_traced(hostile: MessageStore) -> None:
    found = hostile.find(message_id=HOSTILE_ID)
    page = read_page(found._repr_html_())
    assert "1 message" in page.text
    assert shown(HOSTILE_ID) in page.text
    traced = read_page(timeline(hostile.trace(HOSTILE_ID), HOSTILE_ID).source)
    assert f"stored · {shown(HOSTILE_TOPIC)}-0 at 0" in traced.text


def test_hostile_names_of_columns(hostile: MessageStore) -> None:
    names = ["<script>alert(1)</script>", '" onload="x', "\u202e", "same", "same"]
    rows = pa.table([pa.array(["x"])] * 5, names=names)
    page = read_page(table_card(rows.to_batches(), rows.schema, "</style><b>").source)
    assert page.text.startswith("</style><b>")
    assert "<script>alert(1)</script>" in page.text
    assert "<script>" in read_page(message_cards([dict.fromkeys(names, "x")]).source).text


@pytest.mark.process
@pytest.mark.parametrize("text_", ["<>&\"'" * 40, "\x1b\u202e" * 100, "a\x00" * 100, "订单عربى" * 25])
def test_a_page_has_an_end(text_: str) -> None:
    rows = pa.table({f"column{i}": pa.array([text_] * 3000) for i in range(6)})
    page = read_page(table_card(rows.to_batches(), rows.schema, "many", limit=3000, total=3000).source)
    assert "of 3,000 rows: the page is full" in page.text
    assert page.rows > 20


@pytest.mark.process
def test_a_message_has_an_end() -> None:
    row = {f"column{i}{'<' * 90}": "\x1ba" * 500 for i in range(1000)} | {
        "properties": {f"{i}": "&" * 500 for i in range(9000)}
    }
    page = read_page(message_cards([row | {"topic": "T", "body": b"\x00" * 10_000_000}] * 20).source)
    assert "more columns: the page is full" in page.text
    assert "of 9,000 properties" in page.text
    assert "not shown: the page is full" in page.text
    assert "the first 1 messages: the page is full" in page.text


def test_many_messages_have_an_end() -> None:
    rows = [{"topic": "\x1bT" * 100, "body": b"\x00a" * 1000}] * 5000
    assert "the first 10 messages; more follow" in read_page(message_cards(rows).source).text
    assert "messages: the page is full" in read_page(message_cards(rows, limit=5000).source).text
    empty = message_cards([{"body": b""}] * 50_000, limit=50_000)
    assert "messages: the page is full" in read_page(empty.source).text


def test_a_table_has_so_many_columns() -> None:
    rows = pa.table({f"c{i}": pa.array([i]) for i in range(1000)})
    page = read_page(table_card(rows.to_batches(), rows.schema, "wide").source)
    assert "1 row; the first 60 of 1,000 columns" in page.text


def test_a_timeline_has_an_end() -> None:
    rows = [(i * 1000, "stored", "T" * 300, "b", 0, i, i, None, "<d>" * 300) for i in range(20_000)]
    page = read_page(timeline(pa.Table.from_batches([batch_of(TRACE_COLUMNS, rows)]), "id").source)
    assert "of 20,000 events" in page.text


@pytest.mark.process
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(3))
def test_flipped_bytes_of_every_file(copy_of: Golden, seed: int) -> None:
    root = copy_of("delay-tx-5.5.0")
    chance = random.Random(seed)
    files = sorted(path for path in root.rglob("*") if path.is_file() and 0 < path.stat().st_size < 1 << 20)
    looked = 0
    for _ in range(5):
        damage_files(files, chance)
        try:
            store = MessageStore.open(str(root))
        except StoreError:
            continue
        read_page(store_card(store).source)  # never raises
        looked += 1
        try:
            queues = store.queues()
        except StoreError:
            continue
        for queue in queues[:5]:
            read_page(queue._repr_html_())
    assert looked


# ---- healthy stores ----------------------------------------------------------------------------------------


def _page(html: Html) -> Page:
    return read_page(html.source)


@pytest.mark.process
@pytest.mark.parametrize("name", SINGLE)
def test_the_forms_of_a_broker_s_store(golden: Golden, name: str, unchanged: Unchanged) -> None:
    root = golden(name)
    with unchanged(root):
        store = MessageStore.open(str(root))
        pages = {form: read_page(source) for form, source in _forms(store)}
    assert [form for form, page in pages.items() if WARNING in page.classes] == []
    assert f", {size_text(store.log.size_bytes)}, from offset {store.log.min_offset}" in pages["store"].text
    if store.has_consume_queues:
        messages = sum(queue.max_offset - queue.min_offset for queue in store.queues())
        assert f"{messages:,} in " in pages["store"].text


def test_numbers_and_times_of_a_table() -> None:
    times = pa.array([1_700_000_000_123_000, None], pa.timestamp("us", tz="UTC"))
    numbers = {"count": [1234567, None], "ratio": [0.25, 1234.5], "yes": [True, False]}
    rows = pa.table({**numbers, "when": times, "keys": [["a", "b"], []]})
    source = table_card(rows.to_batches(), rows.schema, "rows", total=2).source
    assert '<th class="n">count</th><th class="n">ratio</th><th>yes</th><th>when</th>' in source
    cells = '<td class="n">1,234,567</td><td class="n">0.25</td><td>yes</td>'
    assert f'{cells}<td class="t">22:13:20.123</td>' in source
    assert '<td class="n z">–</td><td class="n">1,234.5</td>' in source
    assert "2 rows; times: 2023-11-14 UTC" in read_page(source).text


def test_a_table_has_the_units_of_the_command_line() -> None:
    days = pa.array([1_700_000_000_123_000, 1_700_086_400_123_000], pa.timestamp("us", tz="UTC"))
    rows = pa.table(
        {
            "lagBytes": [414_777_780, 159],
            "lagMs": [76_336_958, 0],
            "lagMessages_sum": [1_000_000, 1],
            "queueOffset": [120_777, 0],
            "storeTimestamp": days,
        }
    )
    source = table_card(rows.to_batches(), rows.schema, "rows").source
    for cell in ("396 MiB", "159 B", "21h12m", "1,000,000", "120777"):
        assert f'<td class="n">{cell}</td>' in source
    assert '<td class="t">2023-11-14 22:13:20.123</td>' in source  # two days: each cell has its date
    assert "2 rows; times: UTC" in read_page(source).text
    message = {"topic": "T", "queueId": 1, "queueOffset": 1234, "bornTimestamp": days[0].as_py()}
    page = read_page(message_cards([message]).source).text
    assert page.startswith("T-1 at 1234")
    assert "bornTimestamp2023-11-14 22:13:20.123 UTC" in page


def test_advice_is_never_cut() -> None:
    sentence = "Copy the store first. " * 30
    rows = pa.table({"file": ["a"], "advice": [sentence]})
    assert sentence in read_page(table_card(rows.to_batches(), rows.schema, "rows").source).text


def test_a_view_says_how_many_rows_it_shows(golden: Golden) -> None:
    store = MessageStore.open(str(golden("basic-5.5.0")))
    page = _page(view_card(store, "queues", limit=3))
    assert "the first 3 rows of more" in page.text
    assert page.rows == 4
    assert f"{store.view('queues').num_rows} rows" in _page(view_card(store, "queues")).text
    assert "Each queue: offsets, messages, bytes and times." in page.text


def test_a_view_has_no_column_that_says_nothing(golden: Golden) -> None:
    store = MessageStore.open(str(golden("basic-5.5.0")))
    source = view_card(store, "lag", now_ms=NOW).source
    assert "brokerName" not in source  # the title names the broker
    assert "committed<wbr>Offset" in source
    assert "oldest<wbr>Pop<wbr>Timestamp" not in source
    assert "without a value: oldestPopTimestamp" in read_page(source).text
    assert "`" not in read_page(view_card(store, "problems").source).text


def test_names_and_keys_are_not_broken_at_a_hyphen() -> None:
    rows = pa.table({"keys": [["A-100017"], ["a b"]], "topic": ["broker-a", "x" * 41]})
    source = table_card(rows.to_batches(), rows.schema, "rows").source
    assert '<td class="t">A-100017</td><td class="t">broker-a</td>' in source
    assert f"<td>a b</td><td>{'x' * 41}</td>" in source


def test_the_life_of_a_message(golden: Golden) -> None:
    store = MessageStore.open(str(golden("retry-dlq-5.5.0")))
    message_id = store.view("deadLetters")["msgId"][0].as_py()
    text_ = _page(timeline(store.trace(message_id), message_id)).text
    order = ["born", "stored", "waits for retry 1", "retry 1", "dead letter"]
    order += ["positions of the groups now", "passed"]
    places = [text_.index(what) for what in order]
    assert places == sorted(places)
    assert "+9.9s" in text_  # between the retry's wait and the retry
    assert "no message with this id" in _page(timeline(store.trace("none"), "none")).text


def test_a_diagnosis(copy_of: Golden) -> None:
    root = copy_of("basic-5.5.0")
    store = MessageStore.open(str(root))
    assert "no problems" in read_page(store.diagnose()._repr_html_()).text
    assert "no problems" in _page(view_card(store, "problems")).text
    overwrite(root / "commitlog" / "00000000000000262144", 4, b"bad!")
    found = store.diagnose()
    page = read_page(found._repr_html_())
    text_ = page.text
    assert f"{len(found.of('damage'))} damage" in text_
    assert page.rows == 0  # lines that wrap: in a table the advice lay outside the card
    for problem in found:
        assert f"advice{problem.advice}" in text_
    assert f"damage{found.summary.damage_bytes} B" in text_
    assert f"commitlog1.0 MiB ({store.log.size_bytes:,} bytes) in 4 files" in text_
    assert "0x62616421" in text_
    assert text_.startswith(f"1 damage, 1 infodiagnosisverdict{found.verdict}store")
    assert found.verdict.startswith("damaged in 1 place: ")
    assert text_.count(str(root)) == 1  # files are named from the store's directory on
    assert "damage commitlog/00000000000000262144 at byte " in text_
    view = _page(view_card(store, "problems"))
    assert view.text.count(str(root)) == 1
    assert f"advice{found[0].advice}" in view.text
    assert "the first 1 problems; more follow" in _page(view_card(store, "problems", limit=1)).text


def test_the_card_of_a_crashed_store_says_what_to_do_next(golden: Golden) -> None:
    for name, state in {
        "crash-torn-5.5.0": "crashed: the last writer was killed; store.diagnose() says what is left",
        "basic-5.5.0": "cleanmessages",
    }.items():
        assert f"state{state}" in _page(store_card(MessageStore.open(str(golden(name))))).text


def test_a_page_is_short_where_no_notebook_shows_it(golden: Golden) -> None:
    page = store_card(MessageStore.open(str(golden("basic-5.5.0"))))
    assert repr(page) == f"<HTML of {len(page.source.encode()):,} bytes; a notebook shows it>"
    assert str(page) == page._repr_html_()
    assert len(page.source) < SIZE_MAX // 100
