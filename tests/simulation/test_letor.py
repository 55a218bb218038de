"""Learning-to-rank files: every number arrives, clicks follow the labels, and broken files are named."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from places import REAL_LOGS
from refusals import refuses

from clickexp.data.ingest import extent
from clickexp.errors import DataError
from clickexp.simulation import open_letor, svmlight

REAL = REAL_LOGS / "lambdarank"
FEW = dict(sessions=200, val_sessions=50, test_sessions=50, positions=3)
CERTAIN = dict(click_noise=0.0, examination_top=30.0, examination_decay=0.0)
WIDTH = 6


def documents(rng, queries=12):
    """(label, query, features) of lists of 1 to 5 documents, the first query's with labels 0 and 3."""
    rows = []
    for query in range(queries):
        for n in range(rng.integers(2, 6)):
            features = rng.normal(size=WIDTH).round(3) * (rng.random(WIDTH) < 0.6)
            rows.append(([0, 3][n % 2], 7 + 3 * query, features))
    return rows


def line(label, query, features, qid=True):
    tokens = [f"{index}:{value}" for index, value in enumerate(features) if value]
    return " ".join([str(label), *([f"qid:{query}"] if qid else []), *tokens])


def write(folder, name, rows, qid=True, end="\n"):
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes((end.join(line(*row, qid) for row in rows) + end).encode())
    if not qid:
        queries = [query for _, query, _ in rows]
        sizes = [str(queries.count(query)) for query in dict.fromkeys(queries)]
        (folder / f"{name}.query").write_text("\n".join(sizes) + "\n")


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    return {name: documents(rng, queries) for name, queries in (("train", 12), ("test", 5))}


@pytest.fixture
def folder(tmp_path, rows):
    for name in rows:
        write(tmp_path / "log", f"{name}.txt", rows[name])
    return tmp_path / "log"


FORMS = [(True, "\n", 1 << 24), (False, "\r\n", 64), (True, " # doc 1\n", 200)]
"""Whether lines have a qid, how they end, and bytes that are read at a time."""


@pytest.mark.parametrize(
    "form, transform",
    [
        (FORMS[0], "none"),
        (FORMS[1], "log1p"),
        (FORMS[2], "none"),
        pytest.param(FORMS[0], "log1p", marks=pytest.mark.nightly),
        pytest.param(FORMS[1], "none", marks=pytest.mark.nightly),
        pytest.param(FORMS[2], "log1p", marks=pytest.mark.nightly),
    ],
)
def test_every_number_arrives(tmp_path, rows, monkeypatch, form, transform):
    qid, end, block = form
    monkeypatch.setattr(svmlight, "_BLOCK", block)
    for name in rows:
        write(tmp_path / "log", f"rank.{name}", rows[name], qid, end)
    dataset = open_letor(tmp_path / "log", features=WIDTH, transform=transform, **FEW)
    expected = np.array([features for part in rows.values() for _, _, features in part])
    if transform == "log1p":
        expected = np.sign(expected) * np.log(1 + np.abs(expected))
    values = dataset.train.features.values
    assert not values[0].any() and values.dtype == np.float32
    np.testing.assert_allclose(values[1:], expected, rtol=1e-6, atol=1e-7)
    queries = [query for _, query, _ in rows["test"]]
    lists = {
        query: [i for i, q in enumerate(queries) if q == query] for query in dict.fromkeys(queries)
    }
    first, ranking = 1 + len(rows["train"]), dataset.ranking
    assert ranking.ranks == max(map(len, lists.values()))
    for session, members in enumerate(lists.values()):
        ids = ranking.column("query_doc_ids")[session, : len(members)]
        assert ids.tolist() == [first + i for i in members]
        labels = ranking.column("labels")[session, : len(members)]
        assert labels.tolist() == [rows["test"][i][0] for i in members]


def test_features_may_be_chosen(folder, rows):
    dataset = open_letor(folder, features=[WIDTH - 1, 0], transform="none", **FEW)
    expected = [[features[-1], features[0]] for part in rows.values() for _, _, features in part]
    np.testing.assert_allclose(dataset.train.features.values[1:], expected, rtol=1e-6, atol=1e-7)
    assert dataset.notes["features"] == 2
    with refuses(DataError, f"features has {WIDTH}", f"0 to {WIDTH - 1}"):
        open_letor(folder, features=[0, WIDTH], **FEW)


def test_a_perfect_user_clicks_the_best_documents_and_no_others(folder):
    dataset = open_letor(folder, **FEW, **CERTAIN)
    for part in (dataset.train, dataset.val, dataset.test):
        shown = part.column("query_doc_ids") > 0
        assert np.array_equal(part.column("clicks")[shown], part.column("labels")[shown] == 3)
        assert np.array_equal(shown.sum(axis=1), part.column("lengths"))


def test_parts_come_from_queries_of_their_own(folder, rows):
    dataset = open_letor(folder, val_queries=0.25, **FEW)
    train, val, test = (
        set(part.column("query_ids")) for part in (dataset.train, dataset.val, dataset.test)
    )
    assert (
        (len(train), len(val), len(test)) == (9, 3, 5)
        and not train & val
        and not (train | val) & test
    )
    write(folder, "vali.txt", rows["test"])
    assert set(open_letor(folder, **FEW).val.column("query_ids")) == set(range(12, 17))


def test_queries_of_any_number_stay_apart(tmp_path):
    numbers = [first + query for first in (2**53, 2**63 - 9, -(2**63)) for query in range(8)]
    sizes = [2 + place % 3 for place in range(len(numbers))]
    rows = [
        (document, number, np.ones(2))
        for number, size in zip(numbers, sizes, strict=True)
        for document in range(size)
    ]
    for name in ("train", "test"):
        write(tmp_path / "log", name, rows)
    assert open_letor(tmp_path / "log", **FEW).ranking.column("lengths").tolist() == sizes


def test_a_mistyped_index_does_not_ask_for_all_memory(folder, tmp_path):
    """119 GiB of zeros, for one digit too many."""
    lines = (folder / "test.txt").read_text().splitlines()
    for index in ("2000000000", "9" * 5000):
        lines[4] = f"1 qid:19 {index}:1"
        (folder / "test.txt").write_text("\n".join(lines))
        with refuses(DataError, "test.txt, line 5: feature index", "set features to"):
            open_letor(folder, cache=tmp_path / "cache", **FEW)
        with refuses(DataError, "test.txt, line 5", f"below {WIDTH}"):
            open_letor(folder, features=WIDTH, **FEW)
    assert not list((tmp_path / "cache").iterdir())


def test_wide_documents_are_few_at_a_time(folder, monkeypatch):
    expected = open_letor(folder, features=WIDTH, **FEW).train.features.values
    monkeypatch.setattr(svmlight, "_SLICE", 3 * 4 * WIDTH)
    assert np.array_equal(open_letor(folder, features=WIDTH, **FEW).train.features.values, expected)


def test_one_long_list_does_not_set_the_width_of_all(tmp_path, monkeypatch):
    monkeypatch.setattr(extent, "_FLOOR", 1 << 12)
    rows = [(document % 4, query, np.ones(2)) for query in range(50) for document in range(2)]
    long = [(document % 4, 77, np.ones(2)) for document in range(200)]
    write(tmp_path / "log", "train", rows)
    write(tmp_path / "log", "test", rows[:60] + long + rows[60:])
    with refuses(DataError, "test, query 31", "200 documents", "Leave documents of"):
        open_letor(tmp_path / "log", **FEW)
    write(tmp_path / "log", "test", rows)
    write(tmp_path / "log", "train", rows + long)
    assert open_letor(tmp_path / "log", **FEW).ranking.ranks == 2


def test_given_scores_order_the_lists(folder, rows):
    for name in rows:
        (folder / f"{name}.txt.scores").write_text(
            "\n".join(str(-i) for i in range(len(rows[name])))
        )
    dataset = open_letor(folder, policy="scores", policy_noise=0.0, **FEW)
    for ids, length in zip(
        dataset.train.column("query_doc_ids"), dataset.train.column("lengths"), strict=True
    ):
        assert ids[:length].tolist() == list(range(ids[0], ids[0] + length))


def test_the_trained_policy_learns_a_linear_relevance(tmp_path):
    rng = np.random.default_rng(1)
    train, test = [], []
    for rows, queries in ((train, 200), (test, 20)):
        for query in range(queries):
            x = rng.normal(size=(3, WIDTH))
            rows += [(rank, query, v) for rank, v in enumerate(x[np.argsort(x[:, 0])])]
    for name, rows in (("train", train), ("test", test)):
        write(tmp_path / "log", name, rows)
    options = dict(policy_queries=1.0, policy_noise=0.0, **FEW)
    labels = open_letor(tmp_path / "log", **options).test.column("labels")
    # a third by chance; labels are ranks, so not quite linear
    assert (labels[:, 0] == 2).mean() > 0.8


def test_the_same_seed_gives_the_same_clicks(folder):
    one, same, other = (open_letor(folder, seed=seed, **FEW).train for seed in (1, 1, 2))
    assert np.array_equal(one.column("clicks"), same.column("clicks"))
    assert not np.array_equal(one.column("clicks"), other.column("clicks"))


def test_any_click_model_may_be_the_user(folder):
    dbn = open_letor(folder, user="clickexp.models.DynamicBayesianNetwork", **FEW)
    assert dbn.train.clicks_total > 0
    with refuses(ValueError, "clickexp.models.Nobody"):
        open_letor(folder, user="clickexp.models.Nobody", **FEW)


@pytest.mark.parametrize("label", [32, 40, 1024, 1e30])
def test_a_label_whose_gain_leaves_nothing_to_the_others_is_refused(folder, rows, label):
    """2^label - 1 is the gain: beside 40, attraction of labels up to 4 is the noise."""
    rows["train"][0] = (label, *rows["train"][0][1:])
    write(folder, "train.txt", rows["train"])
    with refuses(DataError, f"label {label:g}", "above 31", "attraction_by_label"):
        open_letor(folder, **FEW)
    with refuses(DataError, f"up to {label:g}", "not among 0 to 4", "attraction_by_label"):
        open_letor(folder, attraction_by_label=[0.1, 0.2, 0.3, 0.4, 0.5], **FEW)


BAD_LINES = {
    "nonsense here": ("'nonsense'", "parse"),
    "": ("does not parse",),
    "1 qid:1 1:2:3": ("does not parse",),
    "1 qid:x 1:2": ("qid 'x'", "64-bit integer"),
    "1 qid:1.5 1:2": ("qid '1.5'", "64-bit integer"),
    f"1 qid:{2**63} 1:2": (f"qid '{2**63}'", "64-bit integer"),
    "1 qid:1 qid:1 1:2": ("two qids",),
    "1 -1:3 1:2": ("'-1:3'", "parse"),
    "1 qid:1 3:": ("'3:'", "parse"),
    "1 qid:1 3:nan": ("'3:nan'", "parse"),
    f"1 qid:1 {WIDTH}:1": (f"'{WIDTH}:1'", "parse", f"below {WIDTH}"),
    "1 qid:1 -2:1": ("'-2:1'", "parse"),
    "1 qid:1 1.5:1": ("'1.5:1'", "parse"),
    "1 1 qid:1 1:1": ("'1'", "parse"),
    "qid:1 1:1": ("does not parse",),
    "1:1 qid:1 2:1": ("does not parse",),
    "1 1:1": ("no qid",),
}


def test_bad_lines_are_named(folder, tmp_path):
    lines = (folder / "train.txt").read_text().splitlines()
    for bad, parts in BAD_LINES.items():
        lines[2] = bad
        (folder / "train.txt").write_text("\n".join(lines))
        with refuses(DataError, "train.txt, line 3: ", *parts):
            open_letor(folder, features=WIDTH, cache=tmp_path / "cache", **FEW)
        assert not list((tmp_path / "cache").glob("*"))


def test_bad_files_and_settings(folder, rows):
    for wrong, parts in (
        (dict(val_queries=1.0), (f"{folder}/train.txt", "val_queries=1.0", "12 training queries")),
        (dict(policy="best"), ("policy is 'best'",)),
        (dict(transform="exp"), ("transform is 'exp'",)),
        (dict(policy="scores"), ("train.txt.scores",)),
        (dict(files={"vali": "x"}), ("files has keys ['vali']",)),
    ):
        with refuses(DataError, *parts):
            open_letor(folder, **wrong, **FEW)
    with refuses(DataError, "train.txt", "comes back after another"):
        write(folder, "train.txt", [*rows["train"], rows["train"][0]])
        open_letor(folder, **FEW)
    write(folder, "train.txt", rows["train"], qid=False)
    (folder / "train.txt.query").write_text("3 x")
    with refuses(DataError, "train.txt.query, line 1: 'x'", "number of documents"):
        open_letor(folder, **FEW)
    for word in ("1e20", "1" + 20 * "0", "-1", "0"):
        (folder / "train.txt.query").write_text(f"3\n{word}\n")
        with refuses(DataError, f"train.txt.query, line 2: '{word}'", "number of documents"):
            open_letor(folder, **FEW)
    (folder / "train.txt.query").write_bytes(b"\xff")
    with refuses(DataError, "train.txt.query: cannot be read"):
        open_letor(folder, **FEW)
    (folder / "train.txt.query").write_text("3 1")
    with refuses(DataError, "2 group sizes sum to 4"):
        open_letor(folder, **FEW)
    (folder / "train.txt.query").unlink()
    write(folder, "train.txt", [(0, query, x) for _, query, x in rows["train"]])
    write(folder, "test.txt", [(0, query, x) for _, query, x in rows["test"]])
    with refuses(DataError, "no document has a label above 0"):
        open_letor(folder, **FEW)
    (folder / "train.txt").write_text("")
    with refuses(DataError, "train.txt: there are no documents"):
        open_letor(folder, **FEW)
    (folder / "train.txt").unlink()
    with refuses(DataError, "one file for train", "none"):
        open_letor(folder, **FEW)


@pytest.mark.parametrize("ending", ["gz", pytest.param("zst", marks=pytest.mark.nightly)])
def test_compressed_files_are_read_as_plain_ones(ending, folder, tmp_path):
    packed = tmp_path / "packed"
    packed.mkdir()
    for file in folder.iterdir():
        with pa.output_stream(
            str(packed / f"{file.name}.{ending}"), compression="detect"
        ) as stream:
            stream.write(file.read_bytes())
    one, other = (open_letor(place, **FEW).train.features.values for place in (folder, packed))
    np.testing.assert_array_equal(one, other)
    cut = packed / f"train.txt.{ending}"
    cut.write_bytes(cut.read_bytes()[:-20])
    with refuses(DataError, str(cut), "cannot be read", "Pack the file again"):
        open_letor(packed, **FEW)


def test_files_without_features_are_refused(folder):
    for name in ("train.txt", "test.txt"):
        (folder / name).write_text("2 qid:1\n0 qid:1\n")
    with refuses(DataError, str(folder), "no features", "feature:value"):
        open_letor(folder, **FEW)


@pytest.mark.parametrize("transform", ["none", "log1p"])
def test_features_are_missing_where_istella_has_the_largest_number(tmp_path, transform):
    lines = ["2 qid:{query} 1:0.5 2:{missing} 3:3", "0 qid:{query} 1:{missing} 3:1e38"]
    found = []
    for missing in ("1.797693134862315e308", "0"):
        folder = tmp_path / missing
        folder.mkdir()
        for part, queries in (("train", (1, 2, 3)), ("test", (4,))):
            rows = [
                line.format(query=query, missing=missing) for query in queries for line in lines
            ]
            (folder / f"{part}.txt").write_text("\n".join(rows))
        dataset = open_letor(folder, transform=transform, **FEW)
        found.append(dataset.train.features.values)
        assert dataset.notes.get("missing_features", 0) == (8 if "e" in missing else 0)
    np.testing.assert_array_equal(*found)
    assert np.isfinite(found[0]).all() and found[0].max() > 80


def test_another_mark_of_missing_features_may_be_stated(folder):
    lines = (folder / "train.txt").read_text().splitlines()
    marked = "\n".join([lines[0] + " 9:1e9", *lines[1:]])
    (folder / "train.txt").write_text(marked + "\n")
    assert open_letor(folder, **FEW, transform="none").train.features.values.max() == 1e9
    dataset = open_letor(folder, **FEW, missing_above=1e9)
    assert dataset.notes["missing_features"] == 1 and not dataset.train.features.values[:, 9].any()
    (folder / "train.txt").write_text(marked.replace("1e9", "2.5e300") + "\n")
    with refuses(DataError, "line 1", "feature 9 is 2.5e+300", "missing_above=1e300"):
        open_letor(folder, **FEW, missing_above=None)


def test_archives_are_answered_with_the_command_that_unpacks_them(tmp_path):
    for name, command in {
        "MQ2008.zip": "unzip ",
        "MQ2008.tar.gz": "tar -xf ",
        "a.rar": "unrar x ",
    }.items():
        (tmp_path / name).write_bytes(b"")
        with refuses(DataError, name, f"Unpack it: {command}{tmp_path / name}"):
            open_letor(tmp_path / name, **FEW)


def test_features_beyond_float32_are_refused(folder):
    lines = (folder / "train.txt").read_text().splitlines()
    lines[3] += " 9:1e39"
    (folder / "train.txt").write_text("\n".join(lines) + "\n")
    with refuses(DataError, "train.txt, line 4", "feature 9 is 1e+39", "Scale the feature"):
        open_letor(folder, **FEW)


@pytest.mark.parametrize("examples", [10, pytest.param(40, marks=pytest.mark.nightly)])
def test_broken_bytes_are_an_error_or_other_numbers(folder, examples):
    """Whatever stands in the file, it is read or refused with the file's name."""
    good = (folder / "train.txt").read_bytes()

    @settings(max_examples=examples, deadline=None)
    @given(at=st.integers(0, 10_000), junk=st.binary(min_size=1, max_size=6))
    # a token of two colons, an odd space between
    @example(at=218, junk=b"\x00\x00\x00\x00\x00\x0b")
    def read(at, junk):
        at %= len(good)
        (folder / "train.txt").write_bytes(good[:at] + junk + good[at + len(junk) :])
        try:
            open_letor(folder, **{**FEW, "sessions": 5, "val_sessions": 5, "test_sessions": 5})
        except DataError as error:
            assert str(folder) in str(error)

    read()


@pytest.mark.nightly
@pytest.mark.skipif(not REAL.exists(), reason=f"the real lists are not at {REAL}")
def test_the_real_lists_have_their_documents():
    dataset = open_letor(REAL, **FEW)
    lines = (REAL / "rank.test").read_text().splitlines()
    assert dataset.query_doc_pairs == 3005 + 768 and dataset.ranking.count == 50
    lengths = dataset.ranking.column("lengths")
    assert lengths.tolist() == [int(n) for n in (REAL / "rank.test.query").read_text().split()]
    shown = np.arange(dataset.ranking.ranks) < lengths[:, None]
    assert dataset.ranking.column("labels")[shown].tolist() == [
        float(row.split()[0]) for row in lines
    ]
    index, value = lines[-1].split()[-1].split(":")
    assert dataset.train.features.values[-1, int(index)] == np.float32(np.log1p(np.float32(value)))


def test_the_true_user_clicks_with_the_probability_of_labels_and_ranks(folder, tmp_path):
    """From a fresh reading and from a cache: attraction .1 + .9 (2^y - 1) / 7 times examination."""
    settings = dict(examination_by_rank=[0.9, 0.5, 0.2], cache=tmp_path / "cache", **FEW)
    for _ in range(2):
        dataset = open_letor(folder, **settings)
        batch = {
            name: dataset.test.column(name)
            for name in ("query_doc_ids", "labels", "clicks", "lengths")
        }
        mask = np.arange(3) < batch["lengths"][:, None]
        lists = {"query_doc_ids": batch["query_doc_ids"], "clicks": batch["clicks"], "mask": mask}
        positions = np.broadcast_to(np.arange(1, 4, dtype=np.int32), mask.shape)
        found = np.exp(dataset.truth.predict_clicks({**lists, "positions": positions}))
        expected = (0.1 + 0.9 * (2 ** batch["labels"] - 1) / 7) * np.array([0.9, 0.5, 0.2])
        assert np.allclose(found[mask], expected[mask], rtol=1e-5)


@pytest.mark.parametrize("missing", ["zero", "mean", "indicator"])
def test_features_are_standardised_by_the_training_documents(tmp_path, missing):
    """By definition in float64, each document as often as training shows it; after the transform."""
    rng, raw = np.random.default_rng(2), []
    for part, queries in (("train", range(5)), ("test", range(5, 8))):
        lines = []
        for query in queries:
            for document in range(4):
                first, second = rng.normal(3, 9), rng.gamma(2.0)
                raw.append([np.nan if rng.random() < 0.3 else first, second])
                shown = "1.797693134862315e308" if np.isnan(raw[-1][0]) else f"{first!r}"
                lines.append(f"{document % 3} qid:{query} 0:{shown} 1:{second!r}")
        (tmp_path / f"{part}.txt").write_text("\n".join(lines))
    dataset = open_letor(tmp_path, standardize=True, missing=missing, **FEW)
    numbers = np.array([[0.0, 0.0], *raw])
    numbers = np.sign(numbers) * np.log1p(np.abs(numbers))
    counts = np.zeros(len(numbers))
    for chunk in dataset.train.chunks():
        np.add.at(counts, chunk.of_documents("query_doc_ids"), 1)
    absent = np.isnan(numbers[:, 0])
    known = counts * ~absent
    mean = 0.0 if missing == "zero" else known @ np.nan_to_num(numbers[:, 0]) / known.sum()
    filled = np.where(np.isnan(numbers), [[mean, 0.0]], numbers)
    center = counts @ filled / counts.sum()
    scale = np.sqrt(counts @ (filled - center) ** 2 / counts.sum())
    expected = (filled - center) / scale
    if missing == "indicator":
        expected = np.column_stack([expected, absent])
    np.testing.assert_allclose(dataset.train.features.values[1:], expected[1:], atol=2e-5)
    assert dataset.notes["missing_features"] == absent.sum()
    assert dataset.train.standardized == {"query_doc_features"}


@pytest.mark.parametrize("policy", ["trained", "feature"])
def test_policies_take_missing_features_for_zero(tmp_path, policy):
    """As they do where zero stands for them in the log."""
    scores = []
    for part, queries in (("train", range(9)), ("test", range(9, 12))):
        lines = [
            f"{document % 3} qid:{query} 0:{document + query / 7} 1:{1e309 if document == 2 else 1}"
            for query in queries
            for document in range(4)
        ]
        (tmp_path / f"{part}.txt").write_text("\n".join(lines).replace("inf", "1.7976e308"))
    for missing in ("zero", "mean"):
        given = {"policy": policy, "policy_feature": 1 if policy == "feature" else None}
        dataset = open_letor(tmp_path, missing=missing, keep_policy_scores=True, **given, **FEW)
        scores.append(dataset.train.column("policy_scores"))
    np.testing.assert_array_equal(*scores)
