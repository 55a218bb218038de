"""clickexp-data as a user types it; every number it prints against plain Python."""

import contextlib
import inspect
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from compositions import composed
from hydra.core.override_parser.overrides_parser import OverridesParser
from layout_logs import layout_log
from refusals import refuses

from clickexp.cli import log_commands as commands
from clickexp.cli.data import main
from clickexp.data import Log, open_lists, open_prepared
from clickexp.data.ingest.layouts import LACKING
from clickexp.data.inspect.summary import summaries
from clickexp.data.log_format import LogFormat
from clickexp.data.names import read_names
from clickexp.data.readers.tiangong_st import FILES
from clickexp.errors import DataError
from clickexp.experiment.formats import FORMATS
from clickexp.experiment.hydra_errors import error_text
from clickexp.experiment.instantiate import constructor
from clickexp.export.ranker import transform_of
from clickexp.results.figures import log as drawn
from clickexp.utils.escape import printable

SIZES = {"train": 40, "val": 7, "test": 11, "ranking": 6}
SPLITS = ["train_sessions=[0,40]", "val_sessions=[40,47]", "test_sessions=[47,58]"]


def lists(count, seed):
    """(query, documents, clicks, labels) of 1 to 5 documents."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 6, count)
    return [
        (
            int(rng.integers(0, 9)),
            *(rng.integers(*ends, size).tolist() for ends in ((1, 60), (0, 2), (-2, 3))),
        )
        for size in sizes
    ]


PARTS = {part: lists(count, seed) for seed, (part, count) in enumerate(SIZES.items())}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path_factory, monkeypatch):
    """Figures go below the working directory."""
    monkeypatch.chdir(tmp_path_factory.mktemp("work"))


@pytest.fixture
def tiangong(tmp_path):
    """Documents are pairs here, so that a pair is known by its document."""
    folder = tmp_path / "my log"
    folder.mkdir()
    for part, rows in PARTS.items():
        lines = [
            [7, query, ids, ids, clicks] + [labels] * (part == "ranking")
            for query, ids, clicks, labels in rows
        ]
        (folder / FILES[part]).write_text("\n".join("\t".join(map(str, line)) for line in lines))
    return folder


@pytest.fixture
def parquet(tmp_path):
    """The same three parts one after another, with labels everywhere."""
    rows = [row for part in ("train", "val", "test") for row in PARTS[part]]
    names = ("query_id", "query_doc_ids", "was_clicked", "labels")
    file = tmp_path / "log.parquet"
    pq.write_table(
        pa.table({name: [row[at] for row in rows] for at, name in enumerate(names)}), file
    )
    return file


def text_of(capsys, *words):
    """The text that the command prints; it draws nothing, which takes longest."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drawn, "write_figures", lambda figures, folder: folder / "figures")
        main(list(map(str, words)))
    return capsys.readouterr().out


def said(capsys, *words):
    """The lines that the command prints, as cells."""
    lines = text_of(capsys, *words).splitlines()
    return [re.split(r" {2,}|: ", line.strip()) for line in lines]


def row(printed, *start):
    """The cells after those that a line starts with; the only such line, bars left out."""
    [cells] = [cells[len(start) :] for cells in printed if tuple(cells[: len(start)]) == start]
    return [cell for cell in cells if not set(cell) <= set("█▉▊▋▌▍▎▏")]


def percent(part, whole):
    return f"{100 * part / whole:.2f}%"


def total(rows, at):
    return sum(sum(row[at]) for row in rows)


def documents(rows):
    return [document for row in rows for document in row[1]]


def assert_counts(printed, parts):
    """The table of counts, the click rates by rank and the lengths."""
    seen = set(documents(parts["train"]))
    shown = [documents(rows) for rows in parts.values()]
    unseen = [[document for document in part if document not in seen] for part in shown]
    clicks = [total(rows, 2) for rows in parts.values()]
    twice = [sum(len(set(r[1])) < len(r[1]) for r in rows) for rows in parts.values()]
    assert any(twice)
    assert row(printed, "lists that show a document twice") == [
        str(lists or "-") for lists in twice
    ]
    assert row(printed, *parts) == []
    assert row(printed, "sessions") == [str(len(rows)) for rows in parts.values()]
    assert row(printed, "distinct queries") == [
        str(len({r[0] for r in rows})) for rows in parts.values()
    ]
    assert row(printed, "documents shown") == [str(len(part)) for part in shown]
    assert row(printed, "distinct query-document pairs") == [str(len(set(part))) for part in shown]
    ratios = [percent(len(set(new)), len(set(part))) for new, part in zip(unseen, shown)]
    assert row(printed, "pairs unseen in training") == ["-", *ratios[1:]]
    ratios = [percent(len(new), len(part)) for new, part in zip(unseen, shown)]
    assert row(printed, "documents shown of such pairs") == ["-", *ratios[1:]]
    assert row(printed, "clicks") == list(map(str, clicks))
    assert row(printed, "click rate") == [percent(n, len(part)) for n, part in zip(clicks, shown)]
    first = [cells[0] for cells in printed].index("rank (train)") + 1
    for rank in range(1, 6):
        there = [r[2][rank - 1] for r in parts["train"] if len(r[2]) >= rank]
        assert printed[first + rank][:4] == [
            str(rank),
            str(len(there)),
            str(sum(there)),
            percent(sum(there), len(there)),
        ]
    lengths = sorted(len(r[1]) for r in parts["train"])
    assert row(printed, "documents in a list") == [
        f"min {lengths[0]}, 10% {lengths[3]}, median {lengths[19]}, 90% {lengths[35]}, max {lengths[-1]}, "
        f"mean {np.mean(lengths):.2f}"
    ]


def assert_labels(printed, part, rows):
    grades = Counter(label for r in rows for label in r[3])
    at = [cells[:1] for cells in printed].index([f"label ({part})"]) + 2
    table = {cells[0]: cells[1:3] for cells in printed[at : at + len(grades)]}
    everything = sum(grades.values())
    assert table == {str(grade): [str(n), percent(n, everything)] for grade, n in grades.items()}


def test_tiangong_st_is_prepared_and_inspected(tiangong, tmp_path, capsys):
    target = tmp_path / "data"
    printed = said(
        capsys, "prepare", "tiangong_st", tiangong, target, "pair_key=document", "name=mine"
    )
    shown = {part: documents(rows) for part, rows in PARTS.items()}
    clicks = {part: total(rows, 2) for part, rows in PARTS.items()}
    assert printed[0] == [str(target), "mine, prepared from tiangong_st"]
    assert row(printed, "train") == ["val", "test", "ranking"]
    assert row(printed, "sessions") == list(map(str, SIZES.values()))
    assert row(printed, "documents shown") == [str(len(part)) for part in shown.values()]
    assert row(printed, "clicks") == list(map(str, clicks.values()))
    assert row(printed, "click rate") == [percent(clicks[part], len(shown[part])) for part in PARTS]
    pairs = len({document for part in shown.values() for document in part})
    assert row(printed, f"query-document ids up to {pairs}") == []
    assert row(printed, "pair key") == ["document"]
    # of which there are 0
    assert not any("cut lists" in cell for cells in printed for cell in cells)
    assert printed[-1] == ["next", f"clickexp dataset=prepared dataset.path={target}"]
    for words in (
        [target],
        [tiangong, "pair_key=document"],
        [tiangong, "format=tiangong_st", "pair_key=document"],
    ):
        printed = said(capsys, "inspect", *words)
        assert_counts(printed, PARTS)
        assert_labels(printed, "ranking", PARTS["ranking"])
        assert row(printed, "examination")[0].startswith("documents link all 5 positions")


def test_letor_is_prepared_with_the_transform_of_its_features(tmp_path, capsys):
    """Clicks on lists of documents with labels; the log comes split and knows how features were transformed."""
    rng = np.random.default_rng(0)
    for part in ("train", "vali", "test"):
        lines = [
            f"{rng.integers(0, 3)} qid:{query} 1:{rng.random():.3f} 2:{rng.random():.3f}\n"
            for query in range(1, 13)
            for _ in range(5)
        ]
        (tmp_path / f"{part}.txt").write_text("".join(lines))
    few = ["sessions=50", "val_sessions=20", "test_sessions=20"]
    printed = said(capsys, "prepare", "letor", tmp_path, tmp_path / "log", *few)
    assert row(printed, "sessions")[:3] == ["50", "20", "20"]
    opened = open_prepared(tmp_path / "log")
    assert opened.notes["transform"] == "log1p"
    config = {"dataset": {"_target_": "clickexp.data.open_prepared", "path": str(tmp_path / "log")}}
    assert transform_of(config, opened) == "log1p"


def test_what_inspect_prints_is_drawn_and_there_as_json(tiangong, tmp_path, capsys):
    words = [tiangong, "pair_key=document", "--output", tmp_path / "drawn"]
    main(["inspect", *map(str, words)])
    printed = capsys.readouterr().out
    assert printed.splitlines()[-1] == f"figures: {tmp_path / 'drawn/figures'}"
    assert "impressions per pair: " in printed and "; movement: " in printed
    names = sorted(file.name for file in (tmp_path / "drawn/figures").iterdir())
    assert names == [
        f"{drawn}.{kind}"
        for drawn in ("click_rate", "context", "sessions")  # few lists: no rates by their length
        for kind in ("pdf", "png")
    ]
    main(["inspect", *map(str, words), "--json"])
    content = json.loads(capsys.readouterr().out)
    train, rows = content["parts"]["train"], PARTS["train"]
    assert train["sessions"] == len(rows) and train["clicks"] == total(rows, 2)
    assert train["clicks_by_rank"] == [
        sum(r[2][rank] for r in rows if rank < len(r[2])) for rank in range(5)
    ]
    assert train["sessions_by_clicks"] == [sum(sum(r[2]) == n for r in rows) for n in range(6)]
    assert train["sessions_by_documents"] == [sum(len(r[1]) == n for r in rows) for n in range(6)]
    shown = sum(len(row[1]) for row in rows)
    assert content["examination"]["impressions_per_pair"] == shown / train["pairs"]
    assert content["examination"]["identified"] and content["examination"]["groups"] == [
        [1, 2, 3, 4, 5]
    ]


def context_of(users, rows):
    """What is reported of the context of lists, list by list; documents are pairs."""
    counted, before = Counter(), {}
    for user, (query, ids, clicks, *_) in zip(users, rows):
        lists = before.setdefault(user, [])
        counted["later"] += bool(lists)
        counted["query_repeated"] += query in [earlier[0] for earlier in lists]
        counted["list_repeated"] += bool(lists) and lists[-1][1] == ids
        counted["seen"] += sum(any(each in earlier[1] for earlier in lists) for each in ids)
        clicked = {each for earlier in lists for each, click in zip(*earlier[1:]) if click}
        counted["clicked"] += sum(each in clicked for each in ids)
        lists.append((query, ids, clicks))
    lengths = Counter(map(len, before.values()))
    return {
        "lists": len(rows),
        "sessions": len(before),
        "lengths": [lengths[n] for n in range(max(lengths) + 1)],
        "documents": sum(len(row[1]) for row in rows),
        **{
            name: counted[name]
            for name in ("later", "query_repeated", "list_repeated", "seen", "clicked")
        },
    }


def test_inspect_reports_the_context_of_search_sessions(tmp_path, capsys):
    """Lists of a user stand apart from each other."""
    found = lists(58, 5)
    rows = [found[at - at % 3 // 2] for at in range(58)]  # every third list is that before
    ids = [[10 * row[0] + each % 10 for each in row[1]] for row in rows]
    rows = [(row[0] % 3, each, row[2]) for row, each in zip(rows, ids)]
    users = (
        np.arange(58) // 3 // 2 + np.random.default_rng(4).integers(0, 2, 20)[np.arange(58) // 3]
    ).tolist()
    columns = {
        "query_id": [row[0] for row in rows],
        "query_doc_ids": ids,
        "clicks": [row[2] for row in rows],
    }
    pq.write_table(pa.table({**columns, "search_session": users}), tmp_path / "log.parquet")
    words = [
        tmp_path / "log.parquet",
        "train_sessions=0.5",
        "val_sessions=0.2",
        "test_sessions=0.3",
    ]
    main(["inspect", *map(str, words), "--json"])
    content = json.loads(capsys.readouterr().out)["context"]
    begun = {user: users.index(user) for user in users}
    for part, (start, stop) in {"train": (0, 29), "val": (29, 40), "test": (40, 58)}.items():
        there = [at for at, user in enumerate(users) if start <= begun[user] < stop]
        assert content[part] == context_of([users[at] for at in there], [rows[at] for at in there])
    assert all(content["train"].values()) and len(set(users)) < np.count_nonzero(np.diff(users))


def test_times_have_their_hour_at_midnight_and_a_zone(tmp_path, capsys):
    days = [f"2025-03-{day:02} 00:00:00" for day in range(1, 11)]
    lists = {"query_doc_ids": [[1, 2]] * 10, "clicks": [[0, 1]] * 10, "time": days}
    pl.DataFrame(lists).write_parquet(tmp_path / "log.parquet")
    words = [tmp_path / "log.parquet", "columns.time=time", "--output", tmp_path / "drawn"]
    main(["inspect", *map(str, words)])
    printed = capsys.readouterr().out
    assert "times (UTC)" in printed and "2025-03-01 00:00:00   2025-03-08 00:00:00" in printed


def test_inspect_goes_on_where_nothing_can_be_written(tiangong, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    main(["inspect", str(tiangong), "pair_key=document", "--output", str(tmp_path / "file")])
    printed = capsys.readouterr().out
    assert "clicks in a session: none" in printed and "figures: not written" in printed


@pytest.mark.parametrize("first", [0, 1])
def test_a_run_and_both_commands_tell_the_same_largest_id(first, tmp_path, capsys):
    """Pairs are as many as the largest id only where ids begin at 1, without gaps."""
    ids = np.arange(first, first + 50).reshape(-1, 5)
    clicks = (ids % 2).tolist()
    pq.write_table(
        pa.table({"query_doc_ids": ids.tolist(), "clicks": clicks}), tmp_path / "log.parquet"
    )
    lines = f"query-document ids up to {first + 49}"
    assert (
        row(said(capsys, "prepare", "lists", tmp_path / "log.parquet", tmp_path / "data"), lines)
        == []
    )
    printed = said(capsys, "inspect", tmp_path / "data")
    assert row(printed, lines) == [] and row(printed, "distinct query-document pairs") == [
        "40",
        "5",
        "5",
    ]
    assert f", {lines}, 5 positions" in open_prepared(tmp_path / "data").describe()


def test_ids_of_a_run_or_a_prepared_log_are_kept(tmp_path, capsys):
    days = {"first": [["a", "b"], ["c", "a"], ["b", "c"]], "next": [["d", "c"], ["b", "e"]] * 2}
    for day, documents in days.items():
        clicks = [[0, 1]] * len(documents)
        table = pa.table({"query_doc_ids": documents, "clicks": clicks})
        pq.write_table(table, tmp_path / f"{day}.parquet")
    words = [
        "prepare",
        "lists",
        tmp_path / "first.parquet",
        tmp_path / "first",
        "pair_key=document",
    ]
    said(capsys, *words)
    run = tmp_path / "run"
    run.mkdir()
    shutil.copy(tmp_path / "first" / "names.parquet", run / "ids.parquet")
    words[2] = tmp_path / "next.parquet"
    for number, kept in enumerate((tmp_path / "first", run)):
        said(capsys, *words[:3], tmp_path / str(number), *words[4:], f"ids={kept}")
        names = read_names(Log.open(tmp_path / str(number)).names)
        assert names["document"].to_list() == ["a", "b", "c", "d", "e"]
    with pytest.raises(SystemExit):
        main([*map(str, words[:3]), str(tmp_path / "x"), "pair_key=document", f"ids={tmp_path}"])
    assert "neither a run nor a prepared log" in capsys.readouterr().err


def test_parquet_is_prepared_and_inspected(parquet, tmp_path, capsys):
    target = tmp_path / "data"
    said(capsys, "prepare", "lists", parquet, target, "columns.clicks=was_clicked")
    parts = {part: PARTS[part] for part in ("train", "val", "test")}
    for words in ([target], [parquet, "columns.clicks=was_clicked", f"cache={tmp_path / 'cache'}"]):
        printed = said(capsys, "inspect", *words, *SPLITS)
        assert_counts(printed, parts)
        for part, rows in parts.items():
            assert_labels(printed, part, rows)


def test_options_may_follow_what_begins_with_dashes(parquet, tmp_path, capsys):
    words = [parquet, "--output", tmp_path / "drawn", "columns.clicks=was_clicked", *SPLITS]
    assert_counts(
        said(capsys, "inspect", *words), {part: PARTS[part] for part in SIZES if part != "ranking"}
    )
    with pytest.raises(SystemExit) as ended:
        main(["inspect", str(parquet), "--json", "columns.clicks=was_clicked", "--jsn=1"])
    assert ended.value.code == 2 and "--jsn=1" in capsys.readouterr().err


def test_a_position_cut_off_is_noted_and_large_ids_are_counted(parquet, tmp_path, capsys):
    options = ["columns.clicks=was_clicked", "positions=2", "query_doc_pairs=2000000000"]
    printed = said(capsys, "inspect", parquet, *options, *SPLITS)
    long = sum(len(r[1]) > 2 for part in ("train", "val", "test") for r in PARTS[part])
    assert row(printed, "cut lists") == [str(long)]
    cut = [document for r in PARTS["train"] for document in r[1][:2]]
    assert row(printed, "distinct query-document pairs")[0] == str(len(set(cut)))


PREPARE = ["prepare", "lists", "SOURCE", "TARGET"]
ERRORS = [
    (["prepare", "nonsense", "SOURCE", "TARGET"], ["'nonsense'", "lists, "]),
    ([*PREPARE, "position=3"], ["position: ", "positions, ", "name"]),
    ([*PREPARE, "positions=x"], ["positions='x'", "an integer, or null"]),
    ([*PREPARE, "train_sessions=1"], ["train_sessions: "]),
    ([*PREPARE, "positions=["], ["positions=[", "YAML"]),
    ([*PREPARE, "positions"], ["'positions'", "key=value"]),
    ([*PREPARE, "columns=1", "columns.clicks=x"], ["columns has a value already"]),
    (["prepare", "lists", "none", "TARGET"], ["none: no such file or folder"]),
    (PREPARE, ["log.parquet: no column 'clicks'"]),
    (["inspect", "none"], ["none: no such file or folder"]),
    (["inspect", "dataset.path=none/log"], ["clickexp-data inspect PATH"]),
    (["verify", "HERE"], ["no prepared log", "clickexp-data prepare"]),
    (["inspect", "none/date=2025-11-01"], ["Check the path."]),
    (["inspect", "HERE"], ["format=", "lists, "]),
    (["inspect", "SOURCE", "positionz=3"], ["positionz: ", "positions, "]),
    (["inspect", "SOURCE", "columns=foo"], ["columns=foo", "columns.click=NAME"]),
    (["inspect", "SOURCE", "columns=[a]"], ["columns.click=NAME"]),
]


@pytest.mark.parametrize("words, parts", ERRORS, ids=lambda each: " ".join(each))
def test_mistakes_end_in_one_line(parquet, tmp_path, capsys, words, parts):
    here = tmp_path / "empty"
    here.mkdir()
    places = {"SOURCE": str(parquet), "TARGET": str(tmp_path / "target"), "HERE": str(here)}
    with pytest.raises(SystemExit) as ended:
        main([places.get(word, word) for word in words])
    lines = capsys.readouterr().err.splitlines()
    assert ended.value.code == 1 and len([line for line in lines if line[:6] != "next: "]) == 1
    assert lines[0].startswith("clickexp-data: ") and not [
        part for part in parts if part not in lines[0]
    ], lines[0]
    assert {path.name for path in tmp_path.iterdir()} == {"log.parquet", "empty"}


@pytest.mark.parametrize("options", [[], ["format=lists"], ["format=impressions"]])
def test_a_pipe_is_refused_instead_of_waited_for(options, tmp_path, capsys):
    """Where columns are looked at before a format is read."""
    os.mkfifo(tmp_path / "log.parquet")
    with pytest.raises(SystemExit):
        main(["inspect", str(tmp_path / "log.parquet"), *options])
    assert "log.parquet: neither a file nor a folder" in capsys.readouterr().err


def messy_shop(file):
    """Rows of pages in the order of time, under names of a shop, with faults."""
    rows = [("ts", "session", "query", "product", "slot", "clicked", "device")]
    for page in range(60):
        for slot in (1, 2, 3):
            query, product = f"query {page % 4}", f"sku {(page + slot) % 5}"
            rows.append(
                (page * 5 + slot, page, query, product, f"{slot}.0", page % slot == 0, "app")
            )
    rows[20] = (*rows[20][:3], "", *rows[20][4:])
    rows[30] = (*rows[30][:2], "", *rows[30][3:])
    rows[50:53] = rows[52], rows[50], rows[51]  # another page's row comes between
    rows.append(rows[100])
    file.write_text("\n".join(",".join(map(str, row)) for row in rows))


def next_command(text):
    [line] = [line for line in text.splitlines() if line.startswith("next: ")]
    return shlex.split(line.removeprefix("next: "))


def test_a_messy_log_is_understood_by_the_commands_that_errors_name(tmp_path, capsys):
    """Layout, names and faults come one message each, which ends with a command that works."""
    log, target = tmp_path / "shop.csv", tmp_path / "target"
    messy_shop(log)
    with pytest.raises(SystemExit):
        main(["inspect", str(log)])
    error = capsys.readouterr().err
    assert "2 kinds of faults" in error
    assert "layout: a row per document shown" in error and "product as document" in error
    assert "line 21: product holds ''" in error and "line 31: query holds ''" in error
    command, *words = next_command(error)
    assert command == "clickexp-data" and words == ["inspect", str(log), "invalid=drop"]
    main([*words, "--output", str(tmp_path / "drawn")])
    printed = capsys.readouterr().out
    for part in (
        "a row per document shown",
        "product as document, slot as rank, clicked as click",
        "not read: ts (columns.time=ts reads it), device",
        "merged rows: 1",
        "missing document: 1",
        "gathered sessions: ",
    ):
        assert part in printed
    told = (
        "dataset.columns.document=product dataset.columns.rank=slot dataset.columns.click=clicked"
    )
    expected = (
        f"clickexp dataset=impressions dataset.path={log} {told} dataset.invalid=drop model=pbm"
    )
    assert next_command(printed) == expected.split()
    device = "columns.device={dtype: category, per: session}"
    main(["inspect", str(log), "invalid=drop", device, "--output", str(tmp_path / "drawn")])
    printed = capsys.readouterr().out
    assert "not read: ts (columns.time=ts reads it)\n" in printed
    assert f"+dataset.{device}" in next_command(printed)

    words = ["prepare", "lists", str(log), str(target)]
    for _ in range(2):  # another format, then what is faulty
        with pytest.raises(SystemExit):
            main(words)
        _, *words = next_command(capsys.readouterr().err)
    main(words)
    assert words[:2] == ["prepare", "impressions"] and (target / "log.json").exists()


def test_options_that_a_layout_lacks_are_those_of_other_layouts():
    keys = {name: {*commands._names(FORMATS[name].read)} for name in LACKING}
    assert {name: {*lacking} for name, lacking in LACKING.items()} == {
        name: set().union(*keys.values()) - own for name, own in keys.items()
    }


def shop_log(folder, layout):
    """A log as rows or as lists, under names that only options say, with a text query and a number that is not."""
    rows = [("lamp", [8, 3], [0, 1], [1, 3]), ("7", [3, 8], [1, 0], [1, 2])] * 10
    names = ["anfrage", "produkt", "geklickt", "slot"]
    log = pl.DataFrame(rows, names, orient="row").with_row_index("visit")
    if layout == "impressions":
        log = log.explode(names[1:])
    log.rename({"visit": "sitzung"}).write_parquet(folder / "log.parquet")


@pytest.mark.parametrize("layout, other", [("impressions", "lists"), ("lists", "impressions")])
def test_another_layout_has_the_keys_of_the_same_meaning(layout, other, tmp_path, capsys):
    """Both commands leave out keys and options that it lacks; names that were given stay with what they mean."""
    shop_log(tmp_path, layout)
    stated = {
        "lists": ["columns.query_doc_ids=produkt", "columns.positions=slot", "query_doc_pairs=9"],
        "impressions": ["columns.document=produkt", "columns.rank=slot", "columns.query=anfrage"],
    }[other]
    source, target = str(tmp_path / "log.parquet"), tmp_path / "target"
    with pytest.raises(SystemExit):
        main(["prepare", other, source, str(target), *stated])
    _, *words = next_command(capsys.readouterr().err)
    main(words)
    assert words[:2] == ["prepare", layout] and (target / "log.json").exists()

    words = [f"dataset={other}", f"dataset.path={source}", *(f"dataset.{word}" for word in stated)]
    with pytest.raises(DataError) as caught:
        constructor(composed(*words)["dataset"], "dataset")()
    _, *words = next_command(error_text(caught.value, words))
    columns = composed(*words)["dataset"]["columns"]
    keys = {"impressions": ("document", "rank"), "lists": ("query_doc_ids", "positions")}[layout]
    assert [columns[key] for key in keys] == ["produkt", "slot"]


def devices(values, **columns):
    """A log of two devices as rows per page, with a column of them, and others that cannot tell layouts apart."""
    log = layout_log(6000)
    parts = [log.train, log.val, log.test]
    together = {
        name: np.concatenate([part.column(name) for part in parts])
        for name in ("query_doc_ids", "clicks", "lengths", "device")
    }
    rows = zip(*(together[name] for name in ("query_doc_ids", "clicks", "lengths")), strict=True)
    shown = [(ids[:length].tolist(), clicks[:length].tolist()) for ids, clicks, length in rows]
    listed = {"query_doc_ids": [ids for ids, _ in shown], "clicks": [clicks for _, clicks in shown]}
    return pl.DataFrame(
        {**listed, "device": [values[device] for device in together["device"]], **columns}
    )


LAYOUTS = {"words": ("desktop", "phone"), "numbers": (3, -7), "truth": (False, True)}


@pytest.mark.parametrize("kind", LAYOUTS)
def test_inspect_proposes_a_column_of_layouts_that_nobody_named(kind, tmp_path, capsys):
    """Where click rates differ by it; columns of other kinds or with many values are not read."""
    others = {
        "user": np.arange(6000),
        "price": np.arange(6000) % 2 + 0.5,
        "side": ["left", "right"] * 3000,
    }
    devices(LAYOUTS[kind], **others).write_parquet(tmp_path / "log.parquet")
    printed = text_of(capsys, "inspect", tmp_path / "log.parquet")
    declared = "columns.device={dtype: category, per: session}"
    assert next_command(printed)[-2:] == [f"+dataset.{declared}", "examination_by=[device]"]
    assert f"as layouts: '{declared}' 'columns.side={{dtype: category, per: session}}'" in printed
    assert "click rate by device" in printed and "click rate by length" not in printed
    assert not any("user=" in line or "price=" in line for line in printed.splitlines())
    settings = {"name": "device", "dtype": "category", "per": "session"}
    read = open_lists(tmp_path / "log.parquet", columns={"device": settings})
    names = [str(value).lower() if kind == "truth" else value for value in LAYOUTS[kind]]
    assert {*read.categories["device"]} == {*names}


def test_groups_that_the_terminal_has_no_room_for_are_left_out_and_no_number_is_cut(
    tmp_path, capsys
):
    """Six lengths of lists are 82 characters wide."""
    shown = [3 + row % 6 for row in range(6000)]
    ids, clicks = [[*range(length)] for length in shown], [[1] + [0] * (n - 1) for n in shown]
    log = pl.DataFrame({"query_doc_ids": ids, "clicks": clicks})
    log.write_parquet(tmp_path / "log.parquet")
    printed = text_of(capsys, "inspect", tmp_path / "log.parquet")
    assert "click rate by length of list" in printed and "…" not in printed
    assert "the first 6 of 7 columns" in printed


@pytest.mark.parametrize(
    "when, is_read",
    [
        (lambda row: f"2026-03-0{1 + row // 1000} 10:00+01:00", True),
        (lambda row: row, False),
        (lambda row: "soon" if row == 9 else "2026-03-01", False),
        (lambda row: row % 2 == 0, False),
    ],
    ids=["dates", "numbers", "words", "truth"],
)
def test_inspect_proposes_a_column_of_dates_that_nobody_named(when, is_read, tmp_path, capsys):
    """Numbers may be how long a page was open; where a cell is no date, devices are compared as without the column."""
    log = devices(("desktop", "phone"), ts=[*map(when, range(6000))])
    log.write_parquet(tmp_path / "log.parquet")
    printed = text_of(capsys, "inspect", tmp_path / "log.parquet")
    assert ("dataset.columns.time=ts" in next_command(printed)) == is_read
    assert ("2026-03-01 09:00:00" in printed) == is_read
    assert ("not read: ts" not in printed) == is_read
    # of words and truth values, the option is an error
    assert ("ts (columns.time=ts reads it)" in printed) == (when(9) == 9)
    assert "click rate by device" in printed


@pytest.mark.parametrize(
    "form, hint",
    [
        (
            "{day}.02.2026",
            """not read: ts (columns.time=ts "time_format='%d.%m.%Y'" reads it)""",
        ),
        (
            "0{day}/02/2026",
            """not read: ts (columns.time=ts "time_format='%d/%m/%Y'" reads it where days come first, and """
            """"time_format='%m/%d/%Y'" where months do)""",
        ),
        ("{day}. Feb", "not read: ts\n"),
    ],
    ids=["dots", "open", "words"],
)
def test_inspect_says_how_dates_of_another_order_are_read(form, hint, tmp_path, capsys):
    """It does not guess which number is the day."""
    days = [form.format(day=1 + row // 1000) for row in range(6000)]
    devices(("desktop", "phone"), ts=days).write_parquet(tmp_path / "log.parquet")
    printed = text_of(capsys, "inspect", tmp_path / "log.parquet")
    assert hint in printed and "columns.time" not in " ".join(next_command(printed))
    if "(" in hint:
        words = shlex.split(hint.partition("(")[2])[:2]
        assert "times (UTC)" in text_of(capsys, "inspect", tmp_path / "log.parquet", *words)


@pytest.mark.parametrize("faulty, readings", [("ts", 2), ("clicks", 1), (None, 1)])
def test_a_log_is_read_again_only_without_a_faulty_column_that_nobody_named(
    faulty, readings, tmp_path, capsys, monkeypatch
):
    """Beside faults of other columns, dates and layouts make no further reading."""
    log = devices(("desktop", "phone"), ts=["2026-03-01"] * 6000)
    if faulty is not None:
        log = log.with_columns(pl.when(pl.int_range(pl.len()) != 9).then(faulty).alias(faulty))
    log.write_parquet(tmp_path / "log.parquet")
    read, opened = LogFormat.__call__, []

    def counted(opener, *arguments, **options):
        opened.append(options)
        return read(opener, *arguments, **options)

    monkeypatch.setattr(LogFormat, "__call__", counted)
    with contextlib.suppress(SystemExit):
        main(["inspect", str(tmp_path / "log.parquet"), "--output", str(tmp_path / "drawn")])
    assert len(opened) == readings
    assert [*opened[-1]["columns"]] == ["device"] if faulty == "ts" else ["time", "device"]


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
@pytest.mark.parametrize("kind", LAYOUTS)
def test_empty_cells_of_a_column_of_layouts_are_a_layout(kind, suffix, tmp_path, capsys):
    """They are counted, beside a category that is called 0; the line that inspect prints is an option of it."""
    values = {**LAYOUTS, "numbers": (0, 1)}[kind]
    log = devices(values).with_columns(
        device=pl.when(pl.int_range(pl.len()) % 100 == 7).then(None).otherwise("device")
    )
    if suffix == "csv":
        lists = pl.col("query_doc_ids", "clicks").cast(pl.List(pl.Int8)).cast(pl.List(pl.String))
        log.with_columns(lists.list.join(" ")).write_csv(tmp_path / "log.csv")
    else:
        log.write_parquet(tmp_path / "log.parquet")
    path = tmp_path / f"log.{suffix}"
    printed = text_of(capsys, "inspect", path)
    declared, by = next_command(printed)[-2:]
    assert (
        declared == "+dataset.columns.device={dtype: category, fill: 0, per: session}"
        and by == "examination_by=[device]"
        and "missing device: 60" in printed
    )
    described = json.loads(text_of(capsys, "inspect", path, declared, "--json"))
    first = described["click_rates_by"]["device"]
    assert {*first} == {"(none)", *map(str.lower, map(str, values))}
    assert first["(none)"]["shown"][0] == 48  # of the training sessions


def test_declarations_of_layouts_collide_with_no_column(tmp_path, capsys):
    """Columns whose names differ by signs, that of a key of the reader, and that of a packed column."""
    of_device = devices(("desktop", "phone"))["device"]
    sides = ["left", "right"] * 3000
    columns = {"a-b": of_device, "a_b": sides, "session": sides, "lengths": sides}
    log = devices((0, 1), **columns).drop("device")
    log.write_parquet(tmp_path / "log.parquet")
    printed = text_of(capsys, "inspect", tmp_path / "log.parquet")
    named = {"a_b": "a_b", "a_b_": "a-b", "session": "session", "lengths_": "lengths"}
    for key, name in named.items():
        called = "" if key == name else f", name: {name}"
        declared = f"columns.{key}={{dtype: category{called}, per: session}}"
        assert declared in printed
    assert next_command(printed)[-1] == "examination_by=[a_b_]"


def test_names_of_layouts_are_drawn_as_text(tmp_path, capsys):
    """Dollar signs would start mathematics; a name with a blank is that of a key without."""
    log = devices(("$x^{$", "电话\x1b[31m")).rename({"device": "Device type"})
    log.write_parquet(tmp_path / "log.parquet")
    main(["inspect", str(tmp_path / "log.parquet"), "--output", str(tmp_path / "out")])
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert (tmp_path / "out/figures/click_rate_by_Device_type.png").stat().st_size > 1000
    *_, declared, by = next_command(printed)
    assert by == "examination_by=[Device_type]" and 'name: "Device type"' in declared
    assert OverridesParser.create().parse_overrides([declared])


def test_inspect_takes_no_column_that_differs_within_a_page(tmp_path, capsys):
    """Rows of a page lie together: a device is one per page, and what is special about a document is not."""
    by_list = devices(("desktop", "phone")).with_row_index("session")
    rows = by_list.explode("query_doc_ids", "clicks").rename(
        {"query_doc_ids": "document", "clicks": "click"}
    )
    rank = pl.int_range(1, pl.len() + 1).over("session")
    rows = rows.with_columns(rank=rank, query=pl.lit("q"), special=pl.col("document") % 2)
    rows.write_csv(tmp_path / "log.csv")
    printed = text_of(capsys, "inspect", tmp_path / "log.csv")
    assert "special=" not in printed and "examination_by=[device]" in next_command(printed)
    damaged = rows.with_columns(document=pl.when(rank == 2).then(None).otherwise("document"))
    damaged.write_csv(tmp_path / "damaged.csv")
    printed = text_of(capsys, "inspect", tmp_path / "damaged.csv", "invalid=drop")
    assert "click rate by device" in printed
    gaps = rows.with_columns(device=pl.when(rank == 2).then(pl.lit("")).otherwise("device"))
    gaps.write_csv(tmp_path / "gaps.csv")
    assert "click rate by device" in text_of(capsys, "inspect", tmp_path / "gaps.csv")


def test_dates_with_dots_and_text_features_are_proposed_as_they_are_written(tmp_path, capsys):
    """Each next command goes one fault further; the last one is that of a run."""
    rows = devices(("desktop", "phone")).with_row_index("session").head(50)
    rows = rows.explode("query_doc_ids", "clicks").rename(
        {"query_doc_ids": "document", "clicks": "click"}
    )
    rank = pl.int_range(1, pl.len() + 1).over("session")
    day = pl.format("{}.02.2026 10:{}", pl.col("session") % 27 + 1, 10 + pl.col("session") % 50)
    rows = rows.with_columns(rank=rank, query=pl.lit("q"), at=day, brand=pl.lit("acme"))
    rows = rows.with_columns(click=pl.col("click").cast(pl.Int8))
    rows.write_csv(tmp_path / "log.csv")
    words = ["inspect", str(tmp_path / "log.csv"), "columns.time=at", "features=[brand]"]
    for _ in range(2):  # format, then what is faulty
        with pytest.raises(SystemExit):
            main(words)
        _, *words = next_command(capsys.readouterr().err)
        assert "time_format=%d.%m.%Y %H:%M" in " ".join(words).replace("'", "")
        if "columns.brand={dtype: category}" in words:
            break
    printed = text_of(capsys, *words)
    following = next_command(printed)
    assert "+dataset.columns.brand={dtype: category}" in following
    assert OverridesParser.create().parse_overrides(following[2:])
    assert "2026-02-01" in printed


def test_what_a_format_needs_is_not_left_out_by_null(tmp_path, capsys):
    (tmp_path / "log.csv").write_text("session,query,document,rank,click\na,q,d,1,1\nb,q,d,1,0\n")
    with pytest.raises(SystemExit):
        main(["inspect", str(tmp_path / "log.csv"), "columns.query=null"])
    error = capsys.readouterr().err
    assert "pair_key=query_document needs" in error and "pair_key=document" in next_command(error)
    with pytest.raises(SystemExit):
        main(["inspect", str(tmp_path / "log.csv"), "columns.rank=null"])
    assert "columns.rank=null leaves out what the format needs" in capsys.readouterr().err


def test_logs_without_clicks_have_no_fit_and_no_figures_of_another_log(tmp_path, capsys):
    """inspect is run again where the log has other columns, and no clicks; a file of somebody else stays."""
    log, out = tmp_path / "log.parquet", tmp_path / "out"
    devices(("desktop", "phone")).write_parquet(log)
    main(["inspect", str(log), "--output", str(out)])
    first = capsys.readouterr().out
    assert next_command(first) and (out / "figures/click_rate_by_device.pdf").is_file()
    (out / "figures/mine.pdf").write_text("of somebody else")
    silent = pl.col("clicks").list.eval(pl.element() & False)
    devices(("desktop", "phone")).drop("device").with_columns(silent).write_parquet(log)
    main(["inspect", str(log), "--output", str(out)])
    second = capsys.readouterr().out
    assert "next:" not in second and "no document of the training sessions was clicked" in second
    stems = {file.stem for file in (out / "figures").iterdir()}
    assert stems == {"sessions", "mine"}


def test_columns_that_show_no_layout_are_an_error_with_what_each_needs(tmp_path, capsys):
    (tmp_path / "log.csv").write_text("a,b\n1,2\n")
    with pytest.raises(SystemExit):
        main(["inspect", str(tmp_path / "log.csv")])
    error = capsys.readouterr().err
    for part in (
        "columns a, b",
        "session, query (optional), document, rank, click",
        "format=lists",
    ):
        assert part in error


def test_what_exists_is_not_touched(parquet, tmp_path, capsys):
    target = tmp_path / "kept"
    target.write_text("mine")
    with pytest.raises(SystemExit):
        main(["prepare", "lists", str(parquet), str(target), "columns.clicks=was_clicked"])
    assert "kept: exists already" in capsys.readouterr().err and target.read_text() == "mine"
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "log.json").write_text("{")
    with pytest.raises(SystemExit):
        main(["inspect", str(tmp_path / "odd")])
    assert "log.json: cannot be read" in capsys.readouterr().err


def test_an_interrupt_leaves_nothing(parquet, tmp_path, capsys, monkeypatch):
    def interrupted(self, done, total):
        raise KeyboardInterrupt

    monkeypatch.setattr(commands.Steps, "__call__", interrupted)
    with pytest.raises(SystemExit) as ended:
        main(
            [
                "prepare",
                "lists",
                str(parquet),
                str(tmp_path / "a" / "b"),
                "columns.clicks=was_clicked",
            ]
        )
    assert ended.value.code == 130 and "stopped" in capsys.readouterr().err
    assert not list((tmp_path / "a").iterdir())


def test_a_reader_of_ones_own_prepares_and_inspects(tmp_path, capsys, monkeypatch):
    """Patterns need no quotes against YAML."""
    code = """
import numpy as np
from clickexp.data import SourceLocation, log_format

@log_format("own")
def open_own(source, log, *, files: str = "*"):
    with log.part("sessions", 2, ["query_doc_ids", "clicks", "lengths"]) as pack:
        for file in sorted(source.glob(files)):
            ids = np.array([[len(file.name), 1]] * 10)
            chunk = {"query_doc_ids": ids, "clicks": ids == 1, "lengths": np.full(10, 2)}
            pack.append(chunk, SourceLocation(str(file)))

def plain(source, log):
    pass
"""
    (tmp_path / "own_format_of_a_test.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "log").mkdir()
    for name in ("a.log", "b.log", "c.txt"):
        (tmp_path / "log" / name).touch()
    own = "own_format_of_a_test:open_own"
    said(capsys, "prepare", own, tmp_path / "log", tmp_path / "data", "files=*.log")
    assert open_prepared(tmp_path / "data").train.count == 16
    printed = said(capsys, "inspect", tmp_path / "log", f"format={own}", "files=*.*")
    assert any(line[0] == "documents shown" for line in printed)
    for format, part in (
        ("own_format_of_a_test:plain", "log_format"),
        ("no_module:f", "PYTHONPATH=FOLDER"),
    ):
        with pytest.raises(SystemExit):
            main(["prepare", format, str(tmp_path / "log"), str(tmp_path / "other")])
        assert part in capsys.readouterr().err


@pytest.mark.parametrize("seconds, tenths", [(0, []), (1.5, range(1, 11))])
def test_progress_is_a_line_a_tenth_after_the_first_second(seconds, tenths, capsys):
    with commands.Steps("reading x") as progress:
        progress.began -= seconds
        for done in range(1, 1001):
            progress(done, 1000)
        progress(0, 0)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(" in ")[0] for line in lines] == [
        f"reading x: {tenth}0%" for tenth in tenths
    ]


def test_progress_of_many_files_says_where_it_is(tmp_path, capsys, monkeypatch):
    """200 files, as warehouses leave them: each is small, so that per cent alone would not say which one is slow."""
    monkeypatch.setattr("clickexp.utils.progress._SHORTEST", 0.0)
    (tmp_path / "log").mkdir()
    for number in range(200):
        rows = "".join(f"{number + 100},q,d{rank},{rank},0\n" for rank in (1, 2, 3))
        (tmp_path / "log" / f"part-{number:03}.csv").write_text(
            "session,query,document,rank,click\n" + rows
        )
    assert main(["prepare", "impressions", str(tmp_path / "log"), str(tmp_path / "out")]) in (
        0,
        None,
    )
    lines = capsys.readouterr().err.splitlines()
    half = next(line for line in lines if "reading log: 50%" in line)
    assert "file 100 of 200 (part-099.csv), 300 rows in" in half
    bad = tmp_path / "log" / "part-123.csv"
    bad.write_text(bad.read_text().replace(",0\n", ",maybe\n"))
    with pytest.raises(SystemExit):
        main(["prepare", "impressions", str(tmp_path / "log"), str(tmp_path / "other")])
    assert str(bad) in capsys.readouterr().err


def test_every_format_and_option_is_in_the_help(capsys):
    with pytest.raises(SystemExit):
        main(["prepare", "--help"])
    lines = capsys.readouterr().out
    for name, opener in FORMATS.items():
        assert f"  {name}: " in lines and opener.format == name
        assert all(
            option in lines for option in list(inspect.signature(opener.read).parameters)[2:]
        )


def test_labelled_test_sessions_are_counted_once(parquet, tmp_path, capsys):
    said(capsys, "prepare", "lists", parquet, tmp_path / "data", "columns.clicks=was_clicked")
    dataset = Log.open(tmp_path / "data").dataset()
    assert dataset.ranking is dataset.test and list(summaries(dataset)) == ["train", "val", "test"]


@pytest.fixture
def stored(parquet, tmp_path):
    """Two prepared logs in one folder, as a cache has them."""
    folder = tmp_path / "stored"
    main(["prepare", "lists", str(parquet), str(folder / "log"), "columns.clicks=was_clicked"])
    shutil.copytree(folder / "log", folder / "other")
    (folder / "xla").mkdir()
    return folder


def test_verify_reads_every_file(stored, capsys):
    capsys.readouterr()
    count, sessions = 3, sum(SIZES[part] for part in ("train", "val", "test"))
    size = sessions * (5 * 4 + 2 * 4 + 4 + 5 * 4 + 8) / 1024  # a click is a byte of a number of 4
    sound = f"{count} files of {size:.4g} KiB agree with their checksums"
    assert said(capsys, "verify", stored / "log") == [[str(stored / "log"), sound]]
    assert said(capsys, "verify", stored) == [
        [str(stored / name), sound] for name in ("log", "other")
    ]


def test_verify_names_all_damage(stored, capsys):
    """Also such as no size betrays, with which the log opens."""
    for file in ("log/sessions/labels.npy", "other/sessions/records.npy"):
        data = bytearray((stored / file).read_bytes())
        data[-1] ^= 4
        (stored / file).write_bytes(data)
    Log.open(stored / "log")
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(["verify", str(stored)])
    [line] = capsys.readouterr().err.splitlines()
    assert ended.value.code == 1
    assert f"{stored / 'log'}: damaged: sessions/labels.npy (the checksum differs)" in line
    assert f"{stored / 'other'}: damaged: sessions/records.npy (the checksum differs)" in line


def test_verify_names_a_folder_whose_description_is_gone(stored, capsys):
    (stored / "log/log.json").unlink()
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(["verify", str(stored)])
    shown = capsys.readouterr()
    assert ended.value.code == 1 and f"{stored / 'log'}: not whole" in shown.err
    assert f"{stored / 'other'}: " in shown.out and "xla" not in shown.out + shown.err


def test_verify_wants_a_prepared_log(stored, capsys):
    with pytest.raises(SystemExit):
        main(["verify", str(stored / "xla")])
    assert "xla: no prepared log" in capsys.readouterr().err


def test_ranks_from_0_are_proposed_and_never_dropped(tmp_path, capsys):
    """The top of each page is what `invalid=drop` would take away."""
    rows = [
        (page, f"d{(page + rank) % 4}", rank, int(rank == 0))
        for page in range(30)
        for rank in range(3)
    ]
    rows[5] = (*rows[5][:3], "")
    table = "\n".join(
        ",".join(map(str, row)) for row in [("session", "document", "rank", "click"), *rows]
    )
    (tmp_path / "log.csv").write_text(table)
    words = ["inspect", str(tmp_path / "log.csv"), "--output", str(tmp_path)]
    for given, proposed in (
        ([], "first_rank=0"),
        (["invalid=drop"], "first_rank=0"),
        (["first_rank=0"], "invalid=drop"),
    ):
        with pytest.raises(SystemExit):
            main([*words, *given])
        assert proposed in next_command(capsys.readouterr().err)
    main([*words, "first_rank=0", "invalid=drop"])
    printed = capsys.readouterr().out
    assert re.search(r" 1 +23 +23 +100.00%", printed) and "dropped pages: 1" in printed


def test_errors_without_a_cache_name_the_log(tmp_path):
    log = pl.DataFrame({"query_doc_ids": [[1, 2]] * 9, "clicks": [[1, 0]] * 9})
    log.write_parquet(tmp_path / "log.parquet")
    with refuses(DataError, str(tmp_path / "log.parquet"), "no labels"):
        open_lists(tmp_path / "log.parquet").train.column("labels")


@pytest.mark.parametrize("value", ["3", "[lists]"])
def test_a_format_that_is_no_name_is_an_error(value, tmp_path, capsys):
    pl.DataFrame({"query_doc_ids": [[1, 2]], "clicks": [[1, 0]]}).write_parquet(
        tmp_path / "log.parquet"
    )
    with pytest.raises(SystemExit):
        main(["inspect", str(tmp_path / "log.parquet"), f"format={value}"])
    assert "there is no format" in capsys.readouterr().err


@pytest.mark.parametrize(("word", "meant"), [("format=list", "lists"), ("formt=lists", "format")])
def test_misspelt_formats_are_corrected(word, meant, tmp_path, capsys):
    log = tmp_path / "log.parquet"
    pl.DataFrame({"query_doc_ids": [[1, 2]], "clicks": [[1, 0]]}).write_parquet(log)
    with pytest.raises(SystemExit):
        main(["inspect", str(log), word])
    assert f"Did you mean {meant}?" in capsys.readouterr().err


def test_figures_of_logs_of_one_name_lie_apart(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        log = pl.DataFrame({"query_doc_ids": [[1, 2]] * 9, "clicks": [[1, 0]] * 9})
        log.write_parquet(tmp_path / folder / "log.parquet")
        main(["inspect", f"{folder}/log.parquet"])
    assert len([*(tmp_path / "outputs" / "inspect").iterdir()]) == 2


def test_logs_are_prepared_verified_and_counted_without_jax(parquet, tmp_path):
    """JAX takes as long to load as a log of two million sessions to prepare."""
    code = """
import sys
from clickexp.cli.data import main
main(["prepare", "lists", sys.argv[1], sys.argv[2], "columns.clicks=was_clicked"])
main(["verify", sys.argv[2]])
main(["inspect", sys.argv[2]])
print(sorted({"jax", "flax"} & set(sys.modules)))
"""
    command = [sys.executable, "-c", code, str(parquet), str(tmp_path / "log")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "agree with their checksums" in done.stdout and done.stdout.splitlines()[-1] == "[]"


def test_click_rates_that_are_all_the_same_are_drawn(tmp_path, capsys):
    """But for those of lists of one length, so that the others have no extent."""
    lists = [(1, "a,d,1,1"), (1, "a,e,2,0"), (2, "c,d,1,0"), (3, "c,d,1,1"), (4, "c,e,1,0")]
    rows = [f"{session + 4 * copy},{row}" for copy in range(130) for session, row in lists]
    (tmp_path / "log.csv").write_text("\n".join(["session,query,document,rank,click", *rows]))
    main(["inspect", str(tmp_path / "log.csv"), "--output", str(tmp_path)])
    assert (tmp_path / "figures/click_rate_by_length_of_list.pdf").is_file()
    assert "next: clickexp dataset=impressions" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["a: [b", "[1]*", "2014", "a\x1b[31m"])
def test_the_command_that_fits_has_the_path_of_a_log_as_it_is(tmp_path, monkeypatch, capsys, name):
    """Names may be mappings or lists in YAML, and are none."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / name
    folder.mkdir()
    log = pl.DataFrame({"query_doc_ids": [[1, 2]] * 9, "clicks": [[1, 0]] * 9})
    log.write_parquet(folder / "log.parquet")
    [line] = [cells for cells in said(capsys, "inspect", name) if cells[0] == "next"]
    words = next_command(": ".join(line))
    [place] = [word for word in words if word.startswith("dataset.path=")]
    value = OverridesParser.create().parse_override(place).value()
    assert getattr(value, "text", value) == printable(name)
