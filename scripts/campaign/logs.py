"""Small logs in each format that clickexp reads, and readers of them that share no code with clickexp."""

import csv
import dataclasses
import gzip
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

LISTS = 60
_QUERIES, _DOCUMENTS, _RANKS = 6, 8, 5

Count = tuple[int, int, int]
"""Lists, documents shown, clicks."""


@dataclasses.dataclass(frozen=True)
class Shown:
    """A list of documents with its clicks.

    Attributes:
        query: Number of the query.
        documents: Numbers of the documents, each of one query.
        clicks: 0 and 1.
        labels: From 0 to 4.
    """

    query: int
    documents: list[int]
    clicks: list[int]
    labels: list[int]


def lists(rng: random.Random, count: int = LISTS) -> list[Shown]:
    """Draws lists."""
    found = []
    for _ in range(count):
        query = rng.randrange(_QUERIES)
        length = rng.randint(2, _RANKS)
        documents = [query * _DOCUMENTS + each for each in rng.sample(range(_DOCUMENTS), length)]
        clicks = [int(rng.random() < 0.4) for _ in documents]
        found.append(Shown(query, documents, clicks, [each % 5 for each in documents]))
    return found


def _write_csv(log: Sequence[Shown], folder: Path) -> Path:
    file = folder / "log.csv"
    rows = [{"query_id": each.query, "query_doc_ids": each.documents, "clicks": each.clicks,
             "labels": each.labels} for each in log]  # fmt: skip
    return _write_rows(rows, file)


def _write_rows(rows: list[dict[str, Any]], file: Path) -> Path:
    with file.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return file


def _write_gzip(log: Sequence[Shown], folder: Path) -> Path:
    plain = _write_csv(log, folder)
    file = folder / "log.csv.gz"
    file.write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    return file


def _write_parquet(log: Sequence[Shown], folder: Path) -> Path:
    columns = {"query_id": [each.query for each in log], "query_doc_ids": [each.documents for each in log],
               "clicks": [each.clicks for each in log], "labels": [each.labels for each in log]}  # fmt: skip
    file = folder / "log.parquet"
    pq.write_table(pa.table(columns), file, row_group_size=20)
    return file


def _impressions(log: Sequence[Shown]) -> list[dict[str, Any]]:
    return [
        {"session": f"s{number}", "query": f"q{each.query}", "document": f"d{document}", "rank": rank, "click": click,
         "label": label}
        for number, each in enumerate(log)
        for rank, (document, click, label) in enumerate(zip(each.documents, each.clicks, each.labels, strict=True), 1)
    ]  # fmt: skip


def _write_impressions(log: Sequence[Shown], folder: Path) -> Path:
    return _write_rows(_impressions(log), folder / "log.csv")


def _write_impressions_parquet(log: Sequence[Shown], folder: Path) -> Path:
    file = folder / "log.parquet"
    pq.write_table(pa.Table.from_pylist(_impressions(log)), file)
    return file


def _write_tiangong(log: Sequence[Shown], folder: Path) -> Path:
    def lines(part: Sequence[Shown], *, labelled: bool = False) -> str:
        cells = ([number // 3, each.query, each.documents, [1] * len(each.documents), each.clicks]
                 + ([each.labels] if labelled else []) for number, each in enumerate(part))  # fmt: skip
        return "".join("\t".join(map(str, row)) + "\n" for row in cells)

    target = folder / "log"
    target.mkdir()
    (target / "train_per_query_quid.txt").write_text(lines(log[:40]))
    (target / "valid_per_query_quid.txt").write_text(lines(log[40:50]))
    (target / "test_per_query_quid.txt").write_text(lines(log[50:]))
    human = target / "human_label_for_NCM_per_query_quid.txt"
    human.write_text(lines(log[50:], labelled=True))
    return target


def _write_yandex(log: Sequence[Shown], folder: Path) -> Path:
    file = folder / "log.txt"
    lines = []
    for number, each in enumerate(log):
        lines.append([number, 0, "Q", each.query, 0, *each.documents])
        clicked = [d for d, click in zip(each.documents, each.clicks, strict=True) if click]
        lines += [[number, time, "C", document] for time, document in enumerate(clicked, 1)]
    file.write_text("".join("\t".join(map(str, line)) + "\n" for line in lines))
    return file


def _write_letor(log: Sequence[Shown], folder: Path) -> Path:
    target = folder / "log"
    target.mkdir()
    for name, part in (("train", log[:40]), ("vali", log[40:50]), ("test", log[50:])):
        lines = (
            f"{label} qid:{number} 1:{document / 7:.3f} 2:{label} 3:{document % 3}\n"
            for number, each in enumerate(part)
            for document, label in zip(each.documents, each.labels, strict=True)
        )
        (target / f"{name}.txt").write_text("".join(lines))
    return target


def _write_baidu_uva(log: Sequence[Shown], folder: Path) -> Path:
    target = folder / "log"
    target.mkdir()

    def features(each: Shown) -> list[list[float]]:
        return [[document / 8, document % 3 - 1.0] for document in each.documents]

    for number, part in enumerate((log[:40], log[40:])):
        columns = {
            "query_doc_features": [features(each) for each in part],
            "positions": [[*range(1, len(each.documents) + 1)] for each in part],
            "clicks": [each.clicks for each in part],
        }
        pq.write_table(pa.table(columns), target / f"part-{number}_split-{number}.parquet")
    labelled = {
        "query_doc_features": [features(each) for each in log[:5]],
        "labels": [each.labels for each in log[:5]],
    }
    pq.write_table(pa.table(labelled), target / "annotations.parquet")
    return target


def _count_csv(path: Path) -> Count | None:
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8-sig", newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if any(row.values())]
    return _count_rows(
        [(json.loads(row["query_doc_ids"]), json.loads(row["clicks"])) for row in rows]
    )


def _count_parquet(path: Path) -> Count | None:
    table = pq.read_table(path, columns=["query_doc_ids", "clicks"])
    ids, clicks = (table.column(name).to_pylist() for name in ("query_doc_ids", "clicks"))
    return _count_rows([*zip(ids, clicks, strict=True)])


def _count_rows(rows: Sequence[tuple[list[Any], list[Any]]]) -> Count | None:
    rows = [(ids, clicks) for ids, clicks in rows if ids]
    shown = sum(len(ids) for ids, _ in rows)
    return len(rows), shown, int(sum(sum(clicks) for _, clicks in rows))


def _count_impressions(path: Path) -> Count | None:
    if path.suffix == ".parquet":
        rows = pq.read_table(path).to_pylist()
    else:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            rows = [row for row in csv.DictReader(stream) if any(row.values())]
    sessions = {row["session"] for row in rows}
    return len(sessions), len(rows), sum(int(row["click"]) for row in rows)


def _count_yandex(path: Path) -> Count | None:
    lines = [line.split("\t") for line in path.read_text().splitlines() if line]
    pages = [line for line in lines if line[2] == "Q"]
    if any(len(line) < 4 or line[2] not in "QC" for line in lines):
        return None
    return len(pages), sum(len(line) - 5 for line in pages), -1  # a click may be of no page


def _count_tiangong(path: Path) -> Count | None:
    names = ("train", "valid", "test")
    files = [path / f"{name}_per_query_quid.txt" for name in names]
    rows = [line.split("\t") for file in files for line in file.read_text().splitlines() if line]
    return _count_rows([(json.loads(row[2]), json.loads(row[4])) for row in rows])


def _count_nothing(path: Path) -> Count | None:  # clicks are simulated, or the folder holds more
    return None


@dataclasses.dataclass(frozen=True)
class Format:
    """A format.

    Attributes:
        write: Writes lists into a folder and returns the path to read.
        count: Lists, documents and clicks at a path; it fails, or returns None, where it cannot know.
        options: Of `clickexp-data inspect`.
    """

    write: Callable[[Sequence[Shown], Path], Path]
    count: Callable[[Path], Count | None]
    options: tuple[str, ...]


_KEYED = "pair_key=document"
FORMATS = {
    "csv": Format(_write_csv, _count_csv, ("format=lists",)),
    "csv_keyed": Format(_write_csv, _count_csv, ("format=lists", _KEYED)),
    "csv_gz": Format(_write_gzip, _count_csv, ("format=lists",)),
    "parquet": Format(_write_parquet, _count_parquet, ("format=lists",)),
    "parquet_keyed": Format(_write_parquet, _count_parquet, ("format=lists", _KEYED)),
    "impressions": Format(_write_impressions, _count_impressions, ("format=impressions",)),
    "impressions_parquet": Format(
        _write_impressions_parquet, _count_impressions, ("format=impressions",)
    ),
    "tiangong_st": Format(_write_tiangong, _count_tiangong, ("format=tiangong_st",)),
    "yandex": Format(_write_yandex, _count_yandex, ("format=yandex",)),
    "letor": Format(
        _write_letor,
        _count_nothing,
        ("format=letor", "sessions=300", "val_sessions=50", "test_sessions=50"),
    ),
    "baidu_ultr_uva": Format(_write_baidu_uva, _count_nothing, ("format=baidu_ultr_uva",)),
}
