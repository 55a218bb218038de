"""The Yandex text against a plain reader of lines."""

import gzip
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refuses

from clickexp.data import Log, prepare
from clickexp.data.readers import yandex
from clickexp.data.readers.yandex import open_yandex
from clickexp.errors import DataError


def prepared(folder, text, **options):
    """The log made of this text, in a new folder below `folder`, whose other entries stay as they are."""
    source = folder / "clicks.txt"
    source.write_bytes(text if isinstance(text, bytes) else text.encode())
    return prepare(open_yandex.read, open_yandex.format, source, folder / "log", **options)


def lists(sessions, name):
    values, lengths = sessions.column(name), sessions.column("lengths")
    return [row[:length].tolist() for row, length in zip(values, lengths, strict=True)]


def plainly_read(lines, positions):
    """Pages (query, ids, clicks), counts, and the ids, one line at a time."""
    numbers, pages, counts, session, above = {}, [], Counter(), None, []
    for line in lines:
        if line[0] != session:
            session, above = line[0], []
        if line[2] == "Q":
            query, urls = line[3], line[5:]
            counts["cut_lists"] += len(urls) > positions
            ids = [numbers.setdefault((query, url), len(numbers) + 1) for url in urls[:positions]]
            pages.append((query, ids, [False] * len(ids)))
            above.append((urls, pages[-1][2]))
        elif not above:
            counts["clicks_before_any_page"] += 1
        else:
            at = next((page for page in reversed(above) if line[3] in page[0]), None)
            counts["clicks_after_a_later_page"] += at is not None and at is not above[-1]
            if at is None:
                counts["clicks_on_nothing_shown"] += 1
            elif at[0].index(line[3]) >= positions:
                counts["clicks_beyond_positions"] += 1
            else:
                at[1][at[0].index(line[3])] = True
    return pages, counts, numbers


SMALL = st.integers(0, 7)
WIDE = st.sampled_from([0, 1, 99_999_999, 100_000_000, 2**32 + 1, 10**16, 10**18 - 1])
NUMBER = SMALL | WIDE
PAGE = st.lists(SMALL, min_size=1, max_size=6).map(lambda urls: ["Q", 1, 2, *urls])
PAGES = st.tuples(st.just("Q"), NUMBER, NUMBER, NUMBER).map(list) | PAGE
ACTION = PAGES | SMALL.map(lambda url: ["C", url])
SESSION = st.tuples(NUMBER, st.lists(ACTION, min_size=1, max_size=8))
LINES = st.lists(SESSION, min_size=1, max_size=12).map(
    lambda sessions: [[name, 0, *action] for name, actions in sessions for action in actions]
)


@pytest.mark.parametrize("examples", [25, pytest.param(150, marks=pytest.mark.nightly)])
def test_every_click_finds_its_page(examples, tmp_path_factory):
    @settings(max_examples=examples, deadline=None)
    @given(
        lines=LINES,
        block=st.sampled_from([1, 30, 200, 1 << 20]),
        positions=st.integers(1, 7),
        end=st.data(),
    )
    def check(lines, block, positions, end):
        folder = tmp_path_factory.mktemp("yandex")
        newline = end.draw(st.sampled_from(["\n", "\r\n"]))
        text = newline.join("\t".join(map(str, line)) for line in lines) + end.draw(
            st.sampled_from(["", newline])
        )
        pages, counts, numbers = plainly_read(lines, positions)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(yandex, "_BLOCK_BYTES", block)
            if not pages:
                with refuses(DataError, "clicks.txt", "no sessions to pack"):
                    prepared(folder, text, positions=positions)
                return
            log = prepared(folder, text, positions=positions)
        sessions = log.parts["sessions"]
        assert sessions.column("query_ids").tolist() == [page[0] for page in pages]
        assert lists(sessions, "query_doc_ids") == [page[1] for page in pages]
        assert lists(sessions, "clicks") == [page[2] for page in pages]
        assert sessions.query_doc_pairs == len(numbers)
        assert Counter(log.notes) == counts

    check()


def known_when_shown(lines):
    """What a user had clicked when each page was shown: on the page above, on all; and the urls that it shows again."""
    found, session = [], None
    for line in lines:
        if line[0] != session:
            session, above = line[0], []
        if line[2] == "Q":
            clicked = {url for _, urls in above for url in urls}
            states = [
                2 if url in clicked else int(any(url in page for page, _ in above))
                for url in line[5:]
            ]
            found.append(
                (len(above[-1][1]) if above else 0, sum(len(urls) for _, urls in above), states)
            )
            above.append((line[5:], set()))
        else:
            page = next((page for page in reversed(above) if line[3] in page[0]), None)
            if page is not None:
                page[1].add(line[3])
    return found


@pytest.mark.parametrize("late", [False, True])
def test_the_context_of_a_page_has_no_click_that_came_after_it(late, tmp_path):
    """It has all clicks that came before it where every click came before the next page."""
    rng, lines = np.random.default_rng(0), []
    for session in range(200):
        for _ in range(rng.integers(1, 5)):
            page = [session, 0, "Q", rng.integers(3), 0, *(10 + rng.permutation(9)[:4])]
            lines.append(page)
            urls = np.arange(10, 19) if late else page[5:]
            lines += [[session, 0, "C", url] for url in rng.choice(urls, rng.integers(3))]
    sessions = prepared(tmp_path, "\n".join("\t".join(map(str, line)) for line in lines)).parts[
        "sessions"
    ]
    above, before, states = zip(*known_when_shown(lines), strict=True)
    np.testing.assert_array_equal(sessions.column("previous_clicks"), above)
    known, seen = sessions.column("session_clicks"), np.array(lists(sessions, "document_seen"))
    assert (known <= before).all() and (seen <= states).all()
    assert (known == before).all() == (seen == states).all() == (not late)
    history = (sessions.column("clicked_positions") > 0).sum(axis=1)
    np.testing.assert_array_equal(history, np.minimum(known, 10))


TEXT = "1\t0\tQ\t5\t0\t7\t8\t9\n1\t3\tC\t8\n2\t0\tQ\t6\t0\t7\n2\t4\tC\t7\n2\t5\tC\t7\n"


def test_labels_become_one_list_a_query(tmp_path):
    labels = " 6 0\t7 1\r\n5\t0\t9\t2\n\n5 0 8 0\n5 1 9 0\n5\t0\t4\t1"
    (tmp_path / "labels").write_text(labels)
    log = prepared(tmp_path, TEXT + "3\t9\tQ\t6\t0\t7\n", relevance=str(tmp_path / "labels"))
    ranking = log.parts["ranking"]
    assert log.parts["sessions"].column("session_ids").tolist() == [1, 2, 3]
    assert ranking.column("query_ids").tolist() == [6, 5]
    assert lists(ranking, "query_doc_ids") == [[4], [3, 2, 5]]
    assert lists(ranking, "labels") == [[1], [2, 0, 1]]
    assert (log.notes["labelled_pairs_never_shown"], log.notes["repeated_labels"]) == (1, 1)
    whole = open_yandex(
        tmp_path / "log", train_sessions=[0, 1], val_sessions=[1, 2], test_sessions=[2, 3]
    )
    assert whole.query_doc_pairs == 5 and whole.ranking.count == 2


def test_compressed_logs_and_progress(tmp_path):
    (tmp_path / "clicks.gz").write_bytes(gzip.compress(TEXT.encode()))
    seen = []
    options = dict(progress=lambda *state: seen.append(state))
    log = prepare(open_yandex.read, "yandex", tmp_path / "clicks.gz", tmp_path / "log", **options)
    assert lists(log.parts["sessions"], "clicks") == [[False, True, False], [True]]
    assert seen[-1][0] == seen[-1][1] == (tmp_path / "clicks.gz").stat().st_size


WRONG = {
    "1\t0\tM\t5\t0\t7": ("'M'", "type of action", "separated by tabs: SessionID"),
    "1\t0\tQC\t5\t0\t7": ("'QC'", "type of action"),
    "1\t0\t\t5\t0\t7": ("''", "type of action"),
    "": ("fields, 1",),
    "1 0 C 7": ("fields, 1",),
    "1\t0\tC": ("fields, 3",),
    "1\t0\tC\t7\t8": ("click", "5 fields"),
    "1\t0\tQ\t5": ("page", "0 URLs"),
    "1\t0\tQ\t5\t0": ("page", "0 URLs"),
    "1\t0\tQ\t5\t0" + "\t7" * 101: ("page", "101 URLs", "1 to 100"),
    "1\t0\tQ\t5\t0\t7\t": ("''", "integer of 1 to 18 digits"),
    "1\t0\tQ\t5\t0\t7.5": ("'7.5'", "integer"),
    "x\t0\tC\t7": ("'x'", "integer"),
    "1\t-1\tC\t7": ("'-1'", "integer"),
    "1\t0\tC\t١": ("'١'", "integer"),
    "1\t0\tC\t123456789x": ("'123456789x'", "integer"),
    "1\t0\tC\t12345678x9": ("'12345678x9'", "integer"),
    "1\t0\tC\t" + "9" * 19: ("'9999999999999999999'", "integer"),
    b"1\t0\tC\t7\xff": ("xff'", "integer"),
}


@pytest.mark.parametrize("block", [10, 1 << 20])
def test_wrong_lines_are_named(tmp_path, monkeypatch, block):
    monkeypatch.setattr(yandex, "_BLOCK_BYTES", block)
    for bad, parts in WRONG.items():
        bad = bad if isinstance(bad, bytes) else bad.encode()
        with refuses(DataError, "clicks.txt, line 6:", *parts):
            prepared(tmp_path, TEXT.encode() + bad + b"\n" + TEXT.encode())
        assert [path.name for path in tmp_path.iterdir()] == ["clicks.txt"]


@pytest.mark.parametrize("examples", [25, pytest.param(150, marks=pytest.mark.nightly)])
def test_any_bytes_are_read_or_refused(examples, tmp_path_factory):
    """A log with some bytes replaced, cut off or put in."""

    @settings(max_examples=examples, deadline=None)
    @given(data=st.data())
    def check(data):
        text = bytearray(TEXT.encode())
        for _ in range(data.draw(st.integers(1, 4))):
            start = data.draw(st.integers(0, len(text)))
            stop = data.draw(st.integers(start, min(start + 3, len(text))))
            text[start:stop] = data.draw(st.binary(max_size=3))
        folder = tmp_path_factory.mktemp("yandex")
        try:
            log = prepared(folder, bytes(text))
        except DataError:
            assert [path.name for path in folder.iterdir()] == ["clicks.txt"]
        else:
            assert log.parts["sessions"].count == text.count(b"\tQ\t")

    check()


@pytest.mark.parametrize("text", ["", "3\t0\tC\t7\n"])
def test_logs_without_a_page(tmp_path, text):
    with refuses(DataError, "clicks.txt", "no sessions to pack", "SessionID TimePassed Q"):
        prepared(tmp_path, text)


BAD_LABELS = {
    "1\t2\t3\n": ("line 1", "fields is 3", "four integers: QueryID RegionID URLID Label"),
    "1 2 3 0\n\n1 2 3 x\n": ("line 3", "'x'", "integer"),
    "1 2 3 0\n1 2 3 0.5\n": ("line 2", "'0.5'", "integer"),
    "\n \n": ("no label",),
    "": ("no label",),
    b"\xff": ("line 1", "fields is 1"),
}


def test_wrong_labels_are_named(tmp_path):
    file = tmp_path / "labels.txt"
    for labels, parts in BAD_LABELS.items():
        file.write_bytes(labels if isinstance(labels, bytes) else labels.encode())
        with refuses(DataError, "labels.txt", *parts):
            prepared(tmp_path, TEXT, relevance=str(file))


def test_wrong_files_and_options(tmp_path):
    for name, content in {
        "cut.gz": gzip.compress(TEXT.encode())[:-9],
        "plain.gz": TEXT.encode(),
    }.items():
        (tmp_path / name).write_bytes(content)
        with refuses(DataError, f"{name}: cannot be read", "Name a text file"):
            open_yandex(tmp_path / name)
    with refuses(DataError, "cannot be read"):
        open_yandex(tmp_path)
    with refuses(DataError, "none.txt", "cannot be read", "Set relevance"):
        prepared(tmp_path, TEXT, relevance=str(tmp_path / "none.txt"))
    with refuses(DataError, "positions is 0"):
        prepared(tmp_path, TEXT, positions=0)
    assert not (tmp_path / "log").exists()


def line(words):
    return b"\t".join([b"1", b"2", b"Q", *words])


def test_integers_of_every_length():
    numbers = [int("9876543210123456789"[:size]) for size in range(1, 19)] + [0, 10**17, 10**18 - 1]
    lines = yandex._lines(line([b"%d" % number for number in numbers]))
    assert lines.str.contains(yandex._LINE).all()
    pages = yandex._pages(*yandex._words(lines))
    assert [*pages.query_ids, *pages.urls[0]] == [numbers[0], *numbers[2:]]


def test_each_byte_other_than_a_digit_is_a_fault():
    good, wrong = [b"1"] * 3, []
    for byte in set(range(256)) - {9, 10} - set(b"0123456789"):
        for at in range(18):
            word = b"12345678901234567"[:at] + bytes([byte]) + b"9" * (17 - at)
            wrong.append(line([*good, word, *good]))
    lines = yandex._lines(b"\n".join(wrong))
    assert len(lines) == len(wrong) and not lines.str.contains(yandex._LINE).any()
    assert all("is not an integer" in yandex._wrong(words.split("\t")) for words in lines)


FAULTY = [
    "x\t0\tQ\t5\t0\t7\t8",  # of session 1, as the line below
    "1\t0\tQ\t5\t0\t7\t8",
    "2\t0\tQ\t5\t0\t7\t8",
    "2\t1\tC\t8",
    "3\t0\tQ\t6\t0\t7\t9",
    "3\t1\tC",
    "3\t0\tQ\t6\t0\t7\t9",
    "4\t0\tQ\t6\t0\t7\t9",
    "4\t1\tC\t9",
    "4.0\t2\tC\t9",  # of session 4, as the line above
    "5\t0\tQ\t6\t0\t7\t9",
    "5\t1\tX\t9",
    "5\t1\tC\t7",
    "6\t0\tQ\t5\t0\t9\t8",
    "6\t1\tC\t9",
]


@pytest.mark.parametrize("block", [1, 30, 1 << 20])
def test_all_faults_are_named_and_their_sessions_left_out(tmp_path, monkeypatch, block):
    monkeypatch.setattr(yandex, "_BLOCK_BYTES", block)
    text = "\n".join(FAULTY)
    (tmp_path / "labels.txt").write_text("5 0 8 2\n5 0 9\n5 0 9 x\n5 0 9 1\n")
    labels = {"relevance": str(tmp_path / "labels.txt")}
    lines = "line 1: 'x' is not an integer", "(4 lines, next line 6, 10, ...)", "Expected"
    of_labels = "labels.txt, line 2: the number of fields is 3", "(2 rows, next line 3)"
    with refuses(DataError, "2 kinds of faults", *lines, *of_labels, "invalid=drop"):
        prepared(tmp_path, text, **labels)
    log = prepared(tmp_path, text, **labels, invalid="drop")
    left = log.parts["sessions"]
    assert left.column("session_ids").tolist() == [2, 6]
    assert lists(left, "clicks") == [[False, True], [True, False]]
    assert lists(log.parts["ranking"], "labels") == [[2, 1]]
    assert log.notes["faulty_lines"] == 4 and log.notes["faulty_labels"] == 2
    assert log.notes["dropped_lines"] == 2 + 3 + 3 + 3


def test_prepared_logs_open_as_they_are(tmp_path):
    prepared(tmp_path, TEXT)
    assert np.array_equal(Log.open(tmp_path / "log").parts["sessions"].column("lengths"), [3, 1])
