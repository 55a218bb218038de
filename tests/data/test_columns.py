"""Columns that a reader declares: packed, checked, viewed and fed like those of the package."""

import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from flax import nnx
from refusals import refuses
from stored_logs import stored

from clickexp.data import (
    Column,
    Log,
    LogWriter,
    Sessions,
    SourceLocation,
    open_impressions,
    open_lists,
    open_prepared,
    prepare,
    superbatches,
)
from clickexp.data.batches import at_step, batch_like, keys_read, with_mask
from clickexp.errors import DataError
from clickexp.evaluation import evaluator
from clickexp.evaluation.evaluator import Evaluator
from clickexp.metrics import LogLikelihood, Metric
from clickexp.models import GlobalCTRModel, PositionBasedModel
from clickexp.parameters import (
    EmbeddingParameterConfig,
    HashEmbedding,
    LinearParameterConfig,
    PositionParameterConfig,
    Sizes,
)
from clickexp.training import Trainer, trainer

DWELL = Column("dwell", "float32", fill=-1)
DEVICE = Column("device", "int8", per="session")
BIAS = Column("bias", "float16", shape=(2,))
VISIT = Column("visit", "int64", per="session")
EXTRA = (DWELL, DEVICE, BIAS, VISIT)
N, RANKS = 30, 3


def arrays(seed=0):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, RANKS + 1, N)
    shown = np.arange(RANKS) < lengths[:, None]
    return {
        "query_doc_ids": rng.integers(1, 9, (N, RANKS)) * shown,
        "clicks": (rng.random((N, RANKS)) < 0.4) & shown,
        "lengths": lengths,
        "query_ids": rng.integers(0, 5, N),
        "dwell": np.where(shown, rng.random((N, RANKS)).astype(np.float32), -1),
        "device": rng.integers(0, 3, N),
        "bias": (rng.random((N, RANKS, 2)) * shown[..., None]).astype(np.float16),
        "visit": rng.integers(0, 2**31, N),
    }


def sessions_of(given):
    own = {
        name: values
        for name, values in given.items()
        if name not in {column.name for column in EXTRA}
    }
    return Sessions.from_arrays(**own, extra={column: given[column.name] for column in EXTRA})


def test_positions_that_are_the_ranks_do_not_travel():
    """Those of padding are no positions; one document that stands elsewhere is enough."""
    given = {
        name: values
        for name, values in arrays().items()
        if name in ("query_doc_ids", "clicks", "lengths")
    }
    positions = np.where(given["query_doc_ids"] > 0, np.arange(1, RANKS + 1), 0)
    alike = Sessions.from_arrays(**given, positions=positions)
    moved = positions.copy()
    moved[-1, given["lengths"][-1] - 1] = 7
    for sessions, travels in (
        (alike, False),
        (Sessions.from_arrays(**given, positions=moved), True),
    ):
        batch = next(superbatches(sessions.with_batch_columns(["positions"]), N, 1))
        assert ("positions" in batch.arrays) == travels
        shown = np.broadcast_to(at_step(with_mask(batch.arrays), 0)["positions"], (N, RANKS))
        there = given["query_doc_ids"] > 0
        np.testing.assert_array_equal(shown[there], sessions.column("positions")[there])


def test_extra_columns_are_packed_and_opened(tmp_path):
    given = arrays()
    sessions = stored(sessions_of(given), tmp_path / "log")
    assert {name: column for name, column in sessions.schema.items() if column in EXTRA} == {
        column.name: column for column in EXTRA
    }
    for name, values in given.items():
        assert np.array_equal(sessions.column(name), values), name
    assert [str(sessions.columns[column.name].dtype) for column in EXTRA] == [
        "float32",
        "int8",
        "float16",
        "int64",
    ]
    order = np.random.default_rng(1).permutation(N)[:7]
    view = sessions.select(order).slice(1, 6)
    for name, values in given.items():
        assert np.array_equal(view.column(name), values[order[1:6]])
    assert sessions.feature_lengths == {"bias": 2, "dwell": 1, "device": 1, "visit": 1}
    assert sessions.fingerprint != sessions_of({**given, "device": 2 - given["device"]}).fingerprint


def test_batches_carry_what_was_chosen_with_its_padding():
    given = arrays()
    sessions = sessions_of(given)
    default = next(superbatches(sessions, 16, 2)).arrays
    assert default.keys() == {
        "query_doc_ids",
        "clicks",
        "lengths",
        "dwell",
        "device",
        "bias",
    }  # 32 bits at most
    chosen = next(
        superbatches(sessions.with_batch_columns(["visit", "dwell"]), 16, 2, seed=1)
    ).arrays
    assert chosen.keys() == {"query_doc_ids", "clicks", "lengths", "dwell", "visit"}
    assert chosen["visit"].shape == (2, 16, 1) and chosen["visit"].dtype == np.int32
    order = np.random.default_rng((1, 0)).permutation(N)
    assert np.array_equal(chosen["visit"].ravel()[:N], given["visit"][order])
    assert np.array_equal(chosen["dwell"].reshape(32, RANKS)[:N], given["dwell"][order])
    assert (chosen["dwell"].reshape(32, RANKS)[N:] == -1).all()


def test_integers_beyond_32_bits_are_refused_where_batches_carry_them():
    given = arrays()
    given["visit"][4] = 2**31
    sessions = sessions_of(given)
    assert list(superbatches(sessions, 8, 1))
    with refuses(DataError, "sessions, row 4", "visit holds 2147483648", "32-bit integers"):
        sessions.with_batch_columns(["visit"])


def test_whole_numbers_that_batches_round_are_refused_where_they_carry_them():
    """Times and sizes with fractions may be rounded, as any number is."""
    size = Column("size", "float64", per="session")
    given = {name: arrays()[name] for name in ("query_doc_ids", "clicks", "lengths")}
    sizes = np.arange(N) + 2.0**24 - N + 1
    assert sizes.max() == 2**24
    fractions = sizes + 2**24 + 0.3
    for values in (sizes, fractions):
        sessions = Sessions.from_arrays(**given, extra={size: values}).with_batch_columns(["size"])
        carried = next(superbatches(sessions, N, 1)).arrays["size"].ravel()
        np.testing.assert_array_equal(carried, values.astype(np.float32))
    sizes[7] = 2**24 + 1
    with refuses(DataError, "row 7", "size holds 16777217", "scale them"):
        Sessions.from_arrays(**given, extra={size: sizes}).with_batch_columns(["size"])


ROUNDED = [
    ("float32", 2**24 + 1),
    ("float16", 2**11 + 1),
    ("float32", -(2**24) - 1),
    ("float32", 2**63 - 1),
]


@pytest.mark.parametrize("dtype, number", ROUNDED)
def test_integers_that_a_type_rounds_are_refused(dtype, number):
    location, column = SourceLocation("log"), Column("visit", dtype, per="session")
    values = np.array([3, number + 1 if number < 2**62 else 2**62, number])
    with refuses(DataError, "row 2", f"visit holds {number}", "declare an integer type"):
        column.convert(values, location)
    assert column.convert(values[:2], location).tolist() == values[:2].tolist()
    # of fractions nobody expects more digits
    assert np.isfinite(column.convert(values + 0.0, location)).all()


def test_integers_in_text_are_integers(tmp_path):
    """Words with a point, and columns that have some, are fractions."""
    rows = [f"{number},1,0,{visit}" for number, visit in enumerate([16777217, *range(11)])]
    columns = {"visit": {"dtype": "float32", "per": "session"}}
    for first, sound in ((rows[0], False), ("0,1,0,16777217.0", True), ("0,1,0,0", True)):
        lines = ["query_id,query_doc_ids,clicks,visit", first, *rows[1:]]
        (tmp_path / "log.csv").write_text("\n".join(lines))
        if sound:
            open_lists(tmp_path / "log.csv", columns=columns)
        else:
            with refuses(
                DataError, "log.csv, line 2", "visit holds 16777217", "declare an integer type"
            ):
                open_lists(tmp_path / "log.csv", columns=columns)


@pytest.mark.parametrize("dtype, remedy", [("int64", "give int32"), ("float64", "give float32")])
def test_a_table_declares_columns_of_32_bits(dtype, remedy, tmp_path):
    """Before it is read."""
    (tmp_path / "log.csv").write_text("query_doc_ids,clicks,visit\n")
    with refuses(DataError, f"columns.visit has dtype {dtype}", remedy):
        open_lists(tmp_path / "log.csv", columns={"visit": {"dtype": dtype}})


BAD = {
    "padding": ({"dwell": (0, 2, 5.0)}, "row 0", "dwell holds 5.0", "-1"),
    "nan": ({"dwell": (3, 0, np.nan)}, "row 3", "dwell holds nan", "finite numbers"),
    "half": ({"bias": (3, 0, 0, 1e6)}, "row 3", "bias holds 1000000.0", "finite numbers"),
    "range": ({"device": (2, 128)}, "row 2", "device holds 128", "int8"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_value_is_named(case):
    changes, *parts = BAD[case]
    given = arrays()
    given["lengths"][0] = 1
    for name in ("query_doc_ids", "clicks", "bias"):
        given[name][0, 1:] = 0
    given["dwell"][0, 1:] = -1
    given["bias"] = given["bias"].astype(np.float32)
    for name, (*at, value) in changes.items():
        given[name][tuple(at)] = value
    with refuses(DataError, *parts):
        sessions_of(given)


def test_a_column_that_cannot_be_is_refused():
    for options, *parts in (
        (dict(name="dwell", dtype="complex64"), "column dwell", "complex64", "bool, int8"),
        (dict(name="dwell", dtype="seconds"), "column dwell", "seconds", "bool, int8"),
        (dict(name="../x", dtype="int8"), "../x", "column"),
        (dict(name="mask", dtype="bool"), "mask", "column"),
        (dict(name="d", dtype="int8", per="query"), "per 'query'", "document or session"),
        (dict(name="d", dtype="int8", fill=0.5), "fill=0.5", "int8"),
        (dict(name="d", dtype="int8", fill=300), "fill=300", "int8"),
        (dict(name="d", dtype="float16", fill=1e6), "fill=1000000.0", "float16"),
        (dict(name="d", dtype="float32", fill="none"), "fill='none'", "float32"),
    ):
        with refuses(DataError, *parts):
            Column(**options)


@pytest.mark.parametrize(
    "source, values, fill, dtype",
    [
        ("uint8", [1, 2, 3], -1, "float32"),
        ("uint8", [1, None, 3], -1, "int32"),
        ("int64", [1, None, 3], 0.5, "float32"),
        ("bool", [True, None, False], -1, "float32"),
        ("double", [1.5, None, 3], 0.1, "float32"),
        ("int64", [2**30 + 1, None, 3], -1.0, "int32"),
    ],
)
def test_a_source_of_a_type_that_does_not_hold_the_fill(source, values, fill, dtype, tmp_path):
    lists = pa.array([values[:2], values[2:]], pa.list_(pa.type_for_alias(source)))
    table = pa.table({"query_doc_ids": [[1, 2], [3]], "clicks": [[0, 1], [1]], "h": lists})
    pq.write_table(table, tmp_path / "log.parquet")
    declared = {"h": {"dtype": dtype, "fill": fill}}
    prepare(open_lists.read, "lists", tmp_path / "log.parquet", tmp_path / "log", columns=declared)
    first, second, third = (fill if value is None else value for value in values)
    expected = np.array([[first, second], [third, fill]], dtype)
    np.testing.assert_array_equal(
        Log.open(tmp_path / "log").parts["sessions"].column("h"), expected
    )


@pytest.mark.parametrize(
    "config",
    [
        PositionParameterConfig("key", 3),
        EmbeddingParameterConfig("key", 3),
        EmbeddingParameterConfig("key", 30, embedding_fn=HashEmbedding),
    ],
)
def test_a_tower_looks_rows_up_by_integers_only(config):
    tower = config.build(Sizes(), rngs=nnx.Rngs(0))
    ids = np.array([[1, 0, 1]], np.int8)
    for dtype in ("float32", "bool"):
        with refuses(DataError, f"key is {dtype}", "integers"):
            tower.log_pair({"key": ids.astype(dtype)})
    assert tower.log_prob({"key": ids}).shape == (1, 3)


def test_names_are_declared_once(tmp_path):
    for columns, *parts in (
        (["query_doc_ids", "clicks", "dwell"], "no column 'dwell'", "Declare it"),
        ([DWELL, Column("dwell", "int8")], "dwell", "twice"),
        ([Column("labels", "int8")], "labels", "twice"),
    ):
        with refuses(DataError, *parts), LogWriter(tmp_path / "log", "log", "none") as log:
            log.part("sessions", 3, columns)


def test_a_reader_writes_them_into_a_prepared_log(tmp_path):
    given = arrays()
    with LogWriter(tmp_path / "log", "log", "own") as log:
        with log.part(
            "sessions", RANKS, [*("query_doc_ids", "clicks", "lengths", "query_ids"), *EXTRA]
        ) as pack:
            pack.append(given, SourceLocation("own"))
    dataset = open_prepared(tmp_path / "log")
    assert np.array_equal(dataset.train.column("dwell"), given["dwell"][: dataset.train.count])


def test_the_keys_read_are_those_of_any_computation():
    batch = batch_like(sessions_of(arrays()))
    assert (
        batch["device"].shape == (1, 1)
        and batch["visit"].dtype == np.int32
        and batch["bias"].shape == (1, 3, 2)
    )

    def compute(batch):
        copied = {**batch, "own": batch["device"]}
        _ = copied["dwell"].sum()
        return jnp.where(copied["mask"], copied["own"], 0)

    # dwell must be there when the program is traced again, though nothing uses what is computed of it
    assert keys_read(compute, batch) == {"mask", "device", "dwell"}


def test_a_key_that_is_turned_for_nothing_is_not_read():
    def compute(batch):
        turned = {name: values.T for name, values in batch.items()}
        return turned["clicks"].sum()

    assert keys_read(compute, {"clicks": np.ones((2, 3)), "device": np.ones((2, 1))}) == {"clicks"}


class Fed(Exception):
    """Ends training or evaluation where it would read the data."""


def columns_fed(monkeypatch, module, run):
    """What travels, without what is compiled for it."""

    def stop(data, *_, **__):
        raise Fed(*data.batch_columns)

    with monkeypatch.context() as patch, pytest.raises(Fed) as fed:
        patch.setattr(module, "feed", stop)
        run()
    return set(fed.value.args)


def test_nothing_travels_that_nobody_reads(monkeypatch):
    sessions = sessions_of(arrays())
    always = {"query_doc_ids", "clicks", "lengths"}
    for attraction, read in (
        (None, set()),
        (EmbeddingParameterConfig(use_feature="device", parameters=2), {"device"}),
        (EmbeddingParameterConfig(use_feature="query_ids", parameters=4), {"query_ids"}),
        (LinearParameterConfig(use_feature="bias", features=2), {"bias"}),
    ):
        model = PositionBasedModel(RANKS, 8, attraction=attraction, rngs=nnx.Rngs(0))
        trained = columns_fed(
            monkeypatch, trainer, lambda: Trainer(epochs=1).train(model, sessions, sessions)
        )
        metrics = {"ll": LogLikelihood()}
        evaluated = columns_fed(
            monkeypatch, evaluator, lambda: Evaluator().clicks(model, sessions, metrics)
        )
        assert trained == evaluated == always | read


def test_ids_of_extra_columns_beyond_a_tower_are_an_error():
    sessions = sessions_of(arrays())
    for use, largest in (("query_ids", 3), ("device", 1)):
        attraction = EmbeddingParameterConfig(use_feature=use, parameters=largest)
        model = PositionBasedModel(RANKS, 8, attraction=attraction, rngs=nnx.Rngs(0))
        with refuses(
            DataError, f"{use} holds {largest + 1}", f"attraction has parameters up to {largest}"
        ):
            Trainer(epochs=1).train(model, sessions, sessions)


class MeanDwell(Metric):
    """A metric of a column, which no model reads."""

    def statistics(self, *, dwell, where, **_):
        return {
            "sum": jnp.sum(jnp.where(where, dwell, 0.0)),
            "documents": jnp.sum(where, dtype=jnp.int32),
        }

    def compute(self):
        return (self.total("sum") / self.total("documents")).item()


def test_a_metric_reads_a_column():
    given = arrays()
    model = GlobalCTRModel(rngs=nnx.Rngs(0))
    metrics = Evaluator().clicks(
        model, sessions_of(given), {"ll": LogLikelihood(), "dwell": MeanDwell()}
    )
    shown = np.arange(RANKS) < given["lengths"][:, None]
    np.testing.assert_allclose(
        metrics.compute()["dwell"], given["dwell"][shown].astype(np.float64).mean(), rtol=1e-6
    )


def parquet(folder):
    table = {
        "query_doc_ids": [[1, 2], [3]],
        "clicks": [[0, 1], [1]],
        "seconds": [[None, 2.5], [4.0]],
        "device": [1, 0],
    }
    pq.write_table(pa.table(table), folder / "log.parquet")
    return folder / "log.parquet"


def csv(folder):
    rows = ["query_doc_ids,clicks,seconds,device", "1 2,0 1,-1 2.5,1", "3,1,4.0,0"]
    (folder / "log.csv").write_text("\n".join(rows))
    return folder / "log.csv"


def impressions(folder):
    rows = ["s,document,rank,click,seconds,device", "a,1,2,1,2.5,1", "a,5,1,0,,1", "b,3,1,1,4.0,0"]
    (folder / "log.csv").write_text("\n".join(rows))
    return folder / "log.csv"


OPENERS = {
    "parquet": (open_lists, parquet),
    "csv": (open_lists, csv),
    "impressions": (open_impressions, impressions),
}


@pytest.mark.parametrize("name", OPENERS)
def test_readers_take_columns_by_option(name, tmp_path):
    opener, write = OPENERS[name]
    columns = {
        "dwell": {"name": "seconds", "fill": -1},
        "device": {"dtype": "int8", "per": "session"},
    }
    options = dict(pair_key="document") if name == "impressions" else {}
    columns |= {"session": "s"} if name == "impressions" else {}
    source = write(tmp_path)
    prepare(opener.read, name, source, tmp_path / "log", columns=columns, **options)
    sessions = Log.open(tmp_path / "log").parts["sessions"]
    assert sessions.column("dwell").tolist() == [[-1.0, 2.5], [4.0, -1.0]]
    assert (
        sessions.column("device").tolist() == [1, 0] and sessions.column("device").dtype == np.int8
    )
    assert sessions.schema["dwell"] == Column("dwell", "float32", fill=-1)


REFUSED = {
    "null": (
        "parquet",
        {"dwell": {"name": "seconds"}},
        "log.parquet, row 0",
        "seconds holds null",
        "Fill it",
    ),
    "empty": (
        "impressions",
        {"dwell": {"name": "seconds"}},
        "log.csv, line 3",
        "seconds holds ''",
        "finite",
    ),
    "missing": ("csv", {"dwell": {}}, "log.csv", "no column 'dwell'", "Set columns.dwell"),
    "undeclared": ("csv", {"dwell": "seconds"}, "columns", "['dwell']", "columns.dwell={"),
    "a key of batches": (
        "csv",
        {"mask": "viewed"},
        "columns.mask",
        "columns.seen=viewed",
        "columns.my_mask={",
    ),
    "key": ("csv", {"dwell": {"type": "int8"}}, "columns.dwell", "['type']", "['dtype', 'per'"),
    "known": ("csv", {"clicks": {"dtype": "int8"}}, "columns.clicks", "its name in the file"),
    "lengths": (
        "csv",
        {"device": {"dtype": "int32"}},
        "log.csv, line 2",
        "device has length 1",
        "has 2",
    ),
    "of a session": (
        "impressions",
        {"dwell": {"name": "rank", "per": "session"}},
        "line 3",
        "its dwell differs",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_options_that_do_not_fit_are_refused(case, tmp_path):
    name, columns, *parts = REFUSED[case]
    opener, write = OPENERS[name]
    options = dict(pair_key="document") if name == "impressions" else {}
    columns = columns | ({"session": "s"} if name == "impressions" else {})
    source = write(tmp_path)
    with refuses(DataError, *parts):
        prepare(opener.read, name, source, tmp_path / "log", columns=columns, **options)
