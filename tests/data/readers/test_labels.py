"""Labels of a log of which some lists, or some documents, were judged: the same in every form of a file."""

import csv

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clickexp.data import open_impressions, open_lists

LABELS = [[2, 0, 1], [None] * 3, [1, None, 0.5], [0]]
"""Of a list judged, one unjudged, one in part; and one without a relevant document."""
COPIES = 10


def rows(labels):
    """One row per session with other labels, an empty list or nothing where `labels` says so."""
    sizes = [3, 3, 3, 1] * COPIES
    return [
        {
            "query_id": query % 4,
            "query_doc_ids": [*range(1, size + 1)],
            "clicks": [query % 2] * size,
            "labels": given,
        }
        for query, (size, given) in enumerate(zip(sizes, labels * COPIES, strict=True))
    ]


def parquet(labels, kind="double"):
    def write(path):
        types = [pa.int64(), pa.list_(pa.int64()), pa.list_(pa.int64())]
        schema = pa.schema(
            zip(
                ("query_id", "query_doc_ids", "clicks", "labels"),
                [*types, pa.list_(pa.type_for_alias(kind))],
            )
        )
        pq.write_table(pa.Table.from_pylist(rows(labels), schema), path / "log.parquet")
        return open_lists(path / "log.parquet")

    return write


def text(word, separator=","):
    """Lists as cells; `word` stands for a label that is missing, None for a cell that is empty."""

    def cell(values):
        if word is None and set(values) == {None}:
            return ""
        return "[" + ", ".join(word or "nan" if x is None else str(x) for x in values) + "]"

    def write(path):
        with open(path / "log.csv", "w", newline="") as file:
            writer = csv.writer(file, delimiter=separator)
            writer.writerow(rows(LABELS)[0])
            for row in rows(LABELS):
                writer.writerow(cell(x) if isinstance(x, list) else x for x in row.values())
        return open_lists(path / "log.csv")

    return write


def impressions(missing, suffix):
    """A row per document, with `missing` for a label that is missing."""

    def write(path):
        fields = ["session", "query", "document", "rank", "click", "label"]
        shown = [
            [session, row["query_id"], document, rank, click, missing if label is None else label]
            for session, row in enumerate(rows(LABELS))
            for rank, (document, click, label) in enumerate(
                zip(row["query_doc_ids"], row["clicks"], row["labels"], strict=True), start=1
            )
        ]
        file = path / f"log.{suffix}"
        if suffix == "csv":
            with open(file, "w", newline="") as opened:
                csv.writer(opened).writerows([fields, *shown])
        else:
            columns = dict(zip(fields, map(list, zip(*shown, strict=True)), strict=True))
            pq.write_table(pa.table(columns), file)
        return open_impressions(file)

    return write


NAN = float("nan")
FORMS = {
    "null": parquet(LABELS),
    "NaN": parquet([[NAN if x is None else x for x in labels] for labels in LABELS], "float"),
    "no list": parquet([LABELS[0], None, *LABELS[2:]]),
    "empty list": parquet([LABELS[0], [], *LABELS[2:]]),
    "nan as text": text("nan"),
    "null as text": text("null"),
    "None as text": text("None"),
    "empty cell": text(None),
    "empty in rows": impressions("", "csv"),
    "null in rows": impressions(None, "parquet"),
    "NaN in rows": impressions(NAN, "parquet"),
}


@pytest.mark.parametrize("form", FORMS)
def test_documents_that_nobody_judged_have_no_label_in_any_form(form, tmp_path):
    dataset = FORMS[form](tmp_path)
    parts = dataset.train, dataset.val, dataset.test
    columns = [(part.column("labels"), part.column("lengths")) for part in parts]
    found = [labels[:n].tolist() for part in columns for labels, n in zip(*part, strict=True)]
    expected = [[NAN if x is None else x for x in labels] for labels in LABELS] * COPIES
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    assert all(not np.isnan(part[0][:, -1][part[1] == 1]).any() for part in columns)  # padding


def test_nulls_and_nan_of_any_form_are_one_test_set(tmp_path):
    """NaN has many forms in bits; runs on the same judgments are compared."""
    labels = np.array([[NAN if x is None else x for x in labels] for labels in LABELS[:3]], "f4")
    other = labels.copy()
    other.view(np.uint32)[np.isnan(labels)] |= 1 << 31
    digests = set()
    for number, values in enumerate((labels, other)):
        (tmp_path / f"{number}").mkdir()
        given = [*values, [0]]
        digests.add(
            parquet([list(row) for row in given], "float")(tmp_path / f"{number}").test_set()
        )
    digests.add(FORMS["null"](tmp_path).test_set())
    assert len(digests) == 1


def test_a_log_without_any_label_has_no_lists_to_rank(tmp_path):
    assert parquet([None] * 4)(tmp_path).ranking is None
    assert FORMS["null"](tmp_path).ranking is not None
