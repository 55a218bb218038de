"""Feature vectors that a dataset makes of columns: against vectors made by hand, from every layout of files."""

import json
import zlib

import numpy as np
import polars as pl
import pytest
from flax import nnx
from refusals import refuses

from clickexp.data import (
    Log,
    LogWriter,
    Sessions,
    SourceLocation,
    open_impressions,
    open_lists,
    open_prepared,
    prepare,
)
from clickexp.data.description import Numbering
from clickexp.data.encoding import Encoding
from clickexp.data.features import Features
from clickexp.errors import ConfigError, DataError
from clickexp.parameters import EmbeddingParameterConfig, LinearParameterConfig, Sizes

SESSIONS, RANKS, TRAIN = 50, 4, 40
FEATURES = "query_doc_features"
BRANDS = ("acme", "bolt", "core")


def rows_of(seed=0):
    """One row per impression: a price, a count, a flag and a brand per document, a device per session."""
    rng = np.random.default_rng(seed)
    n = SESSIONS * RANKS
    session = np.repeat(np.arange(SESSIONS), RANKS)
    return pl.DataFrame(
        {
            "session": session,
            "query": [f"q{number % 7}" for number in session],
            "document": [
                f"d{number}" for number in rng.integers(0, 30, n) * RANKS + np.arange(n) % RANKS
            ],
            "rank": np.arange(n) % RANKS + 1,
            "click": rng.integers(0, 2, n),
            "price": rng.normal(1000, 50, n).round(2),
            "age": rng.integers(0, 9, n),
            "sale": rng.random(n) < 0.5,
            "brand": [BRANDS[number] for number in rng.integers(0, 2, n)],
            "device": [("phone", "desk")[number % 2] for number in session],
        }
    )


def lists_of(rows):
    """The same with a row per session."""
    per_session = ("session", "query", "device")
    documents = [name for name in rows.columns if name not in per_session]
    lists = rows.group_by(*per_session, maintain_order=True).agg(documents)
    names = {
        "query": "query_id",
        "document": "query_doc_ids",
        "rank": "positions",
        "click": "clicks",
    }
    return lists.drop("session").rename(names)


def as_text(lists):
    """Lists in the cells of a table of text."""
    return lists.with_columns(
        pl.col(name).cast(pl.List(pl.String)).list.join(" ")
        for name, kind in lists.schema.items()
        if isinstance(kind, pl.List)
    )


def opened(folder, rows, layout, **options):
    """The dataset in a file of one layout."""
    folder.mkdir(exist_ok=True)
    is_text, file = layout.endswith("csv"), folder / layout.replace(" ", ".")
    table = rows if layout.startswith("impressions") else lists_of(rows)
    if is_text:
        (table if table is rows else as_text(table)).write_csv(file)
    else:
        table.write_parquet(file)
    if table is rows:
        return open_impressions(file, **options)
    return open_lists(file, pair_key="query_document", **options)


LAYOUTS = ("impressions parquet", "impressions csv", "lists parquet", "lists csv")
NAMES = ["price", "age", "sale", "brand", "device"]
COLUMNS = {"brand": {"dtype": "category"}, "device": {"dtype": "category", "per": "session"}}


def by_hand(rows):
    """Numbers standardised by the training documents, flags as they are, an indicator for each training category."""
    train = np.arange(len(rows)) < TRAIN * RANKS
    parts = []
    for name in ("price", "age"):
        values = rows[name].to_numpy().astype(np.float64)
        parts.append((values - values[train].mean()) / values[train].std())
    parts.append(rows["sale"].to_numpy().astype(float))
    for name in ("brand", "device"):
        values = np.array(rows[name].to_list())
        categories = dict.fromkeys(values[train])
        parts += [(values == category).astype(float) for category in categories]
    return np.stack(parts, axis=1)


def made(dataset):
    parts = (dataset.train, dataset.val, dataset.test)
    return np.concatenate(
        [part.column(FEATURES).reshape(-1, part.column(FEATURES).shape[2]) for part in parts]
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_makes_the_vectors_that_were_made_by_hand(tmp_path, layout):
    rows = rows_of()
    rows[-3, "brand"] = "core"  # a test document of a category that training does not show
    dataset = opened(tmp_path, rows, layout, features=NAMES, columns=COLUMNS)
    np.testing.assert_allclose(made(dataset), by_hand(rows), rtol=1e-4, atol=1e-4)
    assert dataset.train.feature_lengths[FEATURES] == 7
    assert dataset.encoding.categories["device"] == ["phone", "desk"]
    assert set(dataset.encoding.categories["brand"]) == {"acme", "bolt"}
    names = dataset.encoding.features.names
    assert names[:3] == ["price", "age", "sale"] and names[5:] == ["device=phone", "device=desk"]


@pytest.mark.parametrize("size", [1e-40, 0.0])
def test_numbers_too_small_to_be_scaled_are_a_constant(size, tmp_path):
    """The inverse of their deviation is infinite in single precision, and made losses nan."""
    rows = rows_of().with_columns(price=pl.col("price") / pl.col("price").abs().max() * size)
    vectors = made(opened(tmp_path, rows, "impressions parquet", features=["price"]))
    np.testing.assert_allclose(vectors, 0, atol=1e-30)


def test_text_of_typed_files_is_a_category_and_numbers_may_stay_as_they_are(tmp_path):
    rows = rows_of()
    plain = opened(
        tmp_path, rows, "impressions parquet", features=["price", "brand"], standardize=False
    )
    np.testing.assert_allclose(made(plain)[:, 0], rows["price"].to_numpy(), rtol=1e-6)
    assert plain.train.standardized == frozenset()
    with refuses(DataError, "line 2", "brand holds", "columns.brand={dtype: category}"):
        opened(tmp_path, rows, "impressions csv", features=["brand"])


def test_a_prepared_log_makes_them_too_and_another_log_as_the_run_did(tmp_path):
    rows, other = rows_of(), rows_of(1).with_columns(brand=pl.lit("core"))
    rows.write_parquet(tmp_path / "log.parquet")
    other.write_parquet(tmp_path / "other.parquet")
    options = {"features": NAMES, "columns": COLUMNS}
    prepare(
        open_impressions.read, "impressions", tmp_path / "log.parquet", tmp_path / "log", **options
    )
    dataset = open_prepared(tmp_path / "log")
    np.testing.assert_allclose(made(dataset), by_hand(rows), rtol=1e-4, atol=1e-4)
    (tmp_path / "encoding.json").write_text(dataset.encoding.model_dump_json())
    kept = open_impressions(
        tmp_path / "other.parquet", learned=Numbering(tmp_path / "encoding.json"), **options
    )
    train = rows["price"].to_numpy()[: TRAIN * RANKS]
    expected = (other["price"].to_numpy() - train.mean()) / train.std()
    np.testing.assert_allclose(made(kept)[:, 0], expected, rtol=1e-4, atol=1e-4)
    assert not made(kept)[:, 3:5].any()  # of a brand that the run does not know
    assert kept.encoding == Encoding.read(tmp_path / "encoding.json")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_missing_features_are_filled_by_the_rule_and_counted(tmp_path, layout):
    rows = rows_of()
    gone = np.random.default_rng(3).random(len(rows)) < 0.2
    rows = rows.with_columns(price=pl.when(~pl.Series(gone)).then("price"))
    if layout == "lists csv":  # an empty word is no word
        rows = rows.with_columns(price=pl.col("price").cast(pl.String).fill_null("null"))
    train = np.arange(len(rows)) < TRAIN * RANKS
    values = rows["price"].cast(pl.Float64, strict=False).to_numpy().astype(float)
    mean = values[train & ~gone].mean()
    with refuses(DataError, "price holds", "row" if "parquet" in layout else "line"):
        opened(tmp_path, rows, layout, features=["price"])
    for missing, filled in (("mean", mean), ("zero", 0.0), ("indicator", mean)):
        plain = opened(
            tmp_path, rows, layout, features=["price"], missing=missing, standardize=False
        )
        expected = np.where(gone, filled, values)
        np.testing.assert_allclose(made(plain)[:, 0], expected, rtol=1e-5)
        assert plain.notes["missing_price"] == gone.sum()
    assert plain.encoding.features.names == ["price", "price is missing"]
    assert np.array_equal(made(plain)[:, 1], gone)
    scaled = opened(tmp_path, rows, layout, features=["price"], missing="mean")
    present = values[train & ~gone]
    deviation = np.sqrt(((present - mean) ** 2).sum() / train.sum())
    np.testing.assert_allclose(
        made(scaled)[:, 0], np.where(gone, 0, (values - mean) / deviation), atol=1e-4
    )


def test_vectors_of_documents_come_from_their_own_column(tmp_path):
    rows = rows_of()
    vectors = np.random.default_rng(0).normal(3, 2, (len(rows), 3)).astype(np.float32)
    found = []
    for layout in ("impressions parquet", "impressions csv", "lists parquet", "lists csv"):
        cells = pl.Series(FEATURES, vectors.tolist(), dtype=pl.List(pl.Float32))
        if layout == "impressions csv":
            table = rows.with_columns(cells.cast(pl.List(pl.String)).list.join(" "))
        elif layout == "lists csv":
            texts = [json.dumps(each) for each in vectors.reshape(SESSIONS, RANKS, 3).tolist()]
            table = as_text(lists_of(rows)).with_columns(pl.Series(FEATURES, texts))
        else:
            table = rows.with_columns(cells)
        if layout == "lists csv":
            table.write_csv(tmp_path / "lists.csv")
            dataset = open_lists(tmp_path / "lists.csv", pair_key="query_document")
        else:
            dataset = opened(tmp_path, table, layout)
        found.append(made(dataset))
    train = vectors[: TRAIN * RANKS].astype(np.float64)
    for each in found:
        np.testing.assert_allclose(each, (vectors - train.mean(0)) / train.std(0), atol=1e-4)
    ragged = rows.with_columns(pl.Series(FEATURES, [[1.0, 2.0]] * 9 + [[1.0]] * (len(rows) - 9)))
    with refuses(DataError, "row 9", "a vector of 1 numbers, the first one has 2"):
        opened(tmp_path, ragged, "impressions parquet")


@pytest.mark.parametrize("layout", ["impressions parquet", "impressions csv"])
def test_all_faults_of_vectors_are_named_and_their_rows_left_out(tmp_path, layout):
    rows = rows_of().with_columns(click=pl.lit(0))
    vectors = np.random.default_rng(0).normal(size=(len(rows), 2)).tolist()
    vectors[1], vectors[RANKS + 1], vectors[2 * RANKS] = [1.0], [1.0, np.nan], [2.0, 3.0, 4.0]
    cells = pl.Series(FEATURES, vectors, dtype=pl.List(pl.Float64))
    is_text = layout.endswith("csv")
    table = rows.with_columns(cells.cast(pl.List(pl.String)).list.join(" ") if is_text else cells)
    kinds = "a vector of 1 numbers", "(2 rows, next", "holds nan"
    with refuses(DataError, *kinds, "invalid=drop"):
        opened(tmp_path, table, layout)
    dataset = opened(tmp_path, table, layout, invalid="drop", standardize=False)
    shown = made(dataset)
    shown = shown[shown.any(axis=1)]  # beyond the end of a list there are zeros
    kept = [v for n, v in enumerate(vectors) if n not in (1, RANKS + 1, 2 * RANKS)]
    np.testing.assert_allclose(shown, kept, rtol=1e-6)
    assert dataset.notes["dropped_rows"] == 3


def test_a_vector_beyond_single_precision_is_named_as_such(tmp_path):
    rows = {
        "query_doc_ids": [[1, 2]] * 9,
        "clicks": [[0, 1]] * 9,
        FEATURES: [[[1.0], [1e300 if row == 4 else 2.0]] for row in range(9)],
    }
    pl.DataFrame(rows).write_parquet(tmp_path / "log.parquet")
    with refuses(DataError, "row 4", f"{FEATURES} holds 1e+300", "numbers that fit float32"):
        open_lists(tmp_path / "log.parquet")


def test_what_is_no_feature_is_refused(tmp_path):
    rows = rows_of()
    for features, *parts in (
        (["click"], "click", "no feature"),
        (["price", "price"], "each of them once"),
        ([], "Give names"),
        (["cost"], "cost", "among"),
    ):
        with refuses(DataError, *parts):
            opened(tmp_path, rows, "impressions parquet", features=features)
    many = rows.with_columns(
        brand=pl.Series([f"b{i}" for i in range(len(rows))]).repeat_by(1).explode()
    )
    assert opened(tmp_path, many, "impressions parquet", features=["brand"]).train.count == TRAIN
    gone = rows.with_columns(price=pl.when(pl.col("session") >= TRAIN).then("price"))
    with refuses(DataError, "price is missing in all training documents"):
        opened(tmp_path, gone, "impressions parquet", features=["price"], missing="mean")


def test_categories_are_numbers_of_training_that_towers_look_up(tmp_path):
    rows = rows_of()
    rows[-1, "brand"] = "core"
    dataset = opened(tmp_path, rows, "impressions csv", columns=COLUMNS)
    assert dataset.columns["brand"] == 2 and dataset.test.column("brand")[-1, -1] == 0
    names = dataset.encoding.categories["brand"]
    numbers = dataset.train.column("brand")
    expected = np.array(rows["brand"].to_list()[: TRAIN * RANKS]).reshape(TRAIN, RANKS)
    assert np.array_equal(np.array(["", *names])[numbers], expected)
    sizes = Sizes(columns=dataset.columns, features=dataset.train.feature_lengths, click_rate=0.5)
    tower = EmbeddingParameterConfig(use_feature="brand").build(sizes, rngs=nnx.Rngs(0))
    assert tower.config.parameters == 2
    assert dataset.train.column("device").shape == (TRAIN,)
    with refuses(ConfigError, "no feature brand"):  # a number of a name measures nothing
        LinearParameterConfig(use_feature="brand").build(sizes, rngs=nnx.Rngs(0))


def test_batches_carry_what_the_dataset_made(tmp_path):
    from clickexp.data.batches import at_step, with_mask
    from clickexp.data.feed import feed

    rows = rows_of()
    dataset = opened(tmp_path, rows, "impressions parquet", features=["price", "brand"])
    view: Sessions = dataset.train.with_batch_columns(["query_doc_ids", "clicks", FEATURES])
    (batch,) = feed(view, 64, 1)
    vectors = at_step(with_mask(batch.arrays), 0)[FEATURES][:TRAIN]
    np.testing.assert_allclose(vectors, dataset.train.column(FEATURES), rtol=1e-6)


def test_fingerprints_know_every_vector():
    """Also those in the middle of many; of a stored array they have its checksum, which is not read."""
    vectors = np.zeros((120_001, 1), np.float32)
    changed = vectors.copy()
    changed[60_000] = 1.0
    log = Sessions.from_arrays(
        query_doc_ids=np.ones((2, 1), int), clicks=np.zeros((2, 1), bool), query_doc_pairs=120_000
    )
    features = [Features(vectors), Features(changed), *(Features(vectors, crc32=k) for k in (1, 2))]
    assert len({log.with_features(each).fingerprint for each in features}) == 4


def test_stored_vectors_have_a_checksum(tmp_path):
    log = Sessions.from_arrays(query_doc_ids=[[1, 2]], clicks=[[True, False]], query_doc_pairs=2)
    vectors = np.array([[0.5], [2.0]], np.float16)
    with LogWriter(tmp_path / "log", "log", "none") as writer:
        writer.add_features(vectors)
        with writer.part("sessions", 2, [log.schema[name] for name in log.columns]) as pack:
            for chunk in log.chunks():
                pack.append(dict(chunk), SourceLocation("log"))
    stored = Log.open(tmp_path / "log").parts["sessions"].features
    np.testing.assert_array_equal(stored.values[1:], vectors)
    assert stored.crc32 == zlib.crc32(np.ascontiguousarray(stored.values).data)


def test_the_remedy_of_an_empty_feature_fills_it(tmp_path):
    """Rows are not left out for what can be filled; a faulty number has the other remedy."""
    log = tmp_path / "log.csv"
    rows = [
        "session,query,document,rank,click,price",
        *(f"{n},1,{n},1,{n % 2},{n}" for n in range(1, 40)),
    ]
    log.write_text("\n".join([*rows, "40,1,40,1,1,"]))
    with refuses(DataError, "missing=mean fills empty features") as refused:
        open_impressions(log, features=["price"])
    assert refused.value.options == {"missing": "mean"}
    log.write_text("\n".join([*rows, "40,1,40,1,1,much"]))
    with refuses(DataError, "price holds 'much'") as refused:
        open_impressions(log, features=["price"])
    assert refused.value.options == {"invalid": "drop"}
