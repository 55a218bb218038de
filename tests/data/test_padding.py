"""One long list among short ones: refused with a remedy that works, before it takes memory or disk."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from refusals import refuses

from clickexp.data import LogWriter, SourceLocation
from clickexp.data.ingest import extent
from clickexp.data.readers.tiangong_st import FILES
from clickexp.errors import DataError
from clickexp.experiment.formats import FORMATS

SHORT, LONG, AT = 60, 90, 40


def sizes(long=LONG):
    """Documents of each list, two but for one."""
    return [long if number == AT else 2 for number in range(SHORT)]


def parquet(folder, lengths):
    lists = [list(range(length)) for length in lengths]
    clicks = [[0] * length for length in lengths]
    pq.write_table(
        pa.table({"query_doc_ids": lists, "clicks": clicks}),
        folder / "log.parquet",
        row_group_size=8,
    )
    return folder / "log.parquet"


def csv(folder, lengths):
    lines = [f"{list(range(length))};{[0] * length}" for length in lengths]
    (folder / "log.csv").write_text("\n".join(["query_doc_ids;clicks", *lines]))
    return folder / "log.csv"


def impressions(folder, lengths):
    rows = [
        f"{session},1,{rank},{rank},0"
        for session, n in enumerate(lengths)
        for rank in range(1, n + 1)
    ]
    (folder / "log.csv").write_text("\n".join(["session,query,document,rank,click", *rows]))
    return folder / "log.csv"


def tiangong_st(folder, lengths):
    for part, name in FILES.items():
        rows = [
            [1, 2, list(range(n)), [1] * n, [0] * n] + [[0] * n] * (part == "ranking")
            for n in (lengths if part == "val" else lengths[:9])
        ]
        (folder / name).write_text("\n".join("\t".join(map(str, row)) for row in rows))
    return folder


def baidu(clicked, labelled):
    def write(folder, lengths):
        for name, sizes, column in (
            ("part-0_split-0", clicked, "positions"),
            ("annotations", labelled, "labels"),
        ):
            sizes = lengths if sizes else lengths[:9]
            columns = {
                "query_doc_features": [[[float(i)] for i in range(n)] for n in sizes],
                column: [list(range(1, n + 1)) for n in sizes],
                "clicks": [[0] * n for n in sizes],
            }
            pq.write_table(pa.table(columns), folder / f"{name}.parquet")
        return folder

    return write


def yandex(folder, lengths):
    (folder / "log.txt").write_text("1\t0\tQ\t1\t0\t5\n2\t0\tQ\t2\t0\t6\n")
    labels = [f"{query} 0 {url} 1" for query, length in enumerate(lengths) for url in range(length)]
    (folder / "labels.txt").write_text("\n".join(labels))
    return folder / "log.txt"


LISTS = "90 documents"
CASES = {
    "lists": (parquet, {}, f"log.parquet, row {AT}:", dict(positions=4)),
    "lists in text": (csv, dict(separator=";"), f"log.csv, line {AT + 2}:", dict(positions=4)),
    "impressions": (impressions, {}, f"log.csv, line {2 * AT + 2}:", dict(positions=4)),
    "tiangong_st": (
        tiangong_st,
        dict(positions=None),
        f"{FILES['val']}, line {AT + 1}:",
        dict(positions=4),
    ),
    "baidu_ultr_uva": (
        baidu(True, False),
        dict(positions=None),
        f"split-0.parquet, row {AT}:",
        dict(positions=4),
    ),
    "baidu_ultr_uva annotations": (
        baidu(False, True),
        {},
        f"annotations.parquet, row {AT}:",
        dict(annotations=None),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_one_long_list_is_refused_and_the_remedy_works(tmp_path, monkeypatch, case):
    write, options, place, remedy = CASES[case]
    opener, source = FORMATS[case.split()[0]], write(tmp_path, sizes())
    monkeypatch.setattr(extent, "_FLOOR", 1 << 10)
    with monkeypatch.context() as patch:
        if "annotations" not in case:
            patch.setattr(LogWriter, "part", lambda *_, **__: pytest.fail("something is written"))
        (setting,) = remedy
        with refuses(DataError, place, LISTS, f"et {setting} to"):
            opener(source, **options)
    splits = (
        {}
        if case == "tiangong_st"
        else dict(train_sessions=0.5, val_sessions=0.25, test_sessions=0.25)
    )
    assert opener(source, **{**options, **remedy}, **splits).train.ranks in (4, 10)
    monkeypatch.setattr(extent, "_FLOOR", 1 << 16)
    parts = opener(source, **options, **splits).parts.values()
    assert max(part.ranks for part in parts) == LONG  # small, however wide


def test_long_lists_of_labels_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(extent, "_FLOOR", 1 << 10)
    source = yandex(tmp_path, sizes())
    with refuses(
        DataError, f"labels.txt, query {AT + 1}:", LISTS, "Leave labels of that query out"
    ):
        FORMATS["yandex"](source, relevance=str(tmp_path / "labels.txt"))


def test_a_kibibyte_does_not_become_half_a_gibibyte(tmp_path):
    """As it was found: 5,000 lists of 2 documents, and one of 20,000."""
    lengths = np.full(5001, 2)
    lengths[1234] = 20_000
    offsets = np.append(0, np.cumsum(lengths))
    zeros = np.zeros(offsets[-1], np.int64)
    columns = {
        name: pa.ListArray.from_arrays(offsets, zeros) for name in ("query_doc_ids", "clicks")
    }
    pq.write_table(pa.table(columns), tmp_path / "log.parquet")
    sizes = "row 1234", "20000 documents", "average 6.0", "5001", "476.9 MiB", "146.5 KiB"
    with refuses(DataError, *sizes, "Set positions to the ranks to keep"):
        FORMATS["lists"](tmp_path / "log.parquet", cache=tmp_path / "cache")
    assert not list((tmp_path / "cache").iterdir())
    assert FORMATS["lists"](tmp_path / "log.parquet", positions=10).notes["cut_lists"] == 1


def test_padding_that_the_data_outweighs_is_no_matter(monkeypatch):
    monkeypatch.setattr(extent, "_FLOOR", 0)
    lists = extent.Extent()
    lists.add(np.array([11] + [1] * 99), SourceLocation("here"))
    assert lists.ranks(["clicks"], "") == 11  # 990 of padding, 110 of documents
    lists.add(np.array([1] * 900 + [12]), SourceLocation("there"))
    with refuses(DataError, "there, row 900", "12 documents", "1.0", "1001"):
        lists.ranks(["clicks"], "nothing")
