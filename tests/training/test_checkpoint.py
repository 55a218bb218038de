"""Fitted parameters and interrupted trainings on disk."""

import io
import resource
import zipfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from refusals import refuses
from small_logs import fill_tables, ragged_log, shown, state_of

from clickexp.errors import UserError
from clickexp.models import (
    DocumentCTRModel,
    DynamicBayesianNetwork,
    PositionBasedModel,
    RankCTRModel,
    UserBrowsingModel,
)
from clickexp.parameters import (
    DeepCrossParameterConfig,
    DeepParameterConfig,
    EmbeddingParameterConfig,
    Table,
)
from clickexp.training.checkpoint import (
    check_same,
    load_model,
    load_training,
    save_model,
    save_training,
)
from clickexp.training.spread import training_on

RANKS, PAIRS = 4, 12
LOG = ragged_log(8, RANKS, PAIRS)
BATCH = dict(
    query_doc_ids=LOG["query_doc_ids"],
    clicks=LOG["clicks"],
    mask=shown(LOG),
    positions=np.arange(1, RANKS + 1, dtype=np.int32)[None],
    query_doc_features=np.random.default_rng(0).normal(size=(8, RANKS, 3)).astype(np.float32),
)
CROSS = DeepCrossParameterConfig(features=3, hidden_units=4, deep_layers=1)
DROPOUT = DeepParameterConfig(features=3, hidden_units=4, layers=1, dropout=0.5)
WIDE = EmbeddingParameterConfig(embedding_features=3)

MODELS = {
    "RCTR": lambda seed: RankCTRModel(RANKS, click_rate=0.1 * (1 + seed), rngs=nnx.Rngs(seed)),
    "PBM": lambda seed: PositionBasedModel(RANKS, PAIRS, rngs=nnx.Rngs(seed)),
    "PBM, wide rows": lambda seed: PositionBasedModel(
        RANKS, PAIRS, attraction=WIDE, rngs=nnx.Rngs(seed)
    ),
    "UBM": lambda seed: UserBrowsingModel(RANKS, PAIRS, rngs=nnx.Rngs(seed)),
    "DBN": lambda seed: DynamicBayesianNetwork(PAIRS, rngs=nnx.Rngs(seed)),
    "DBN, networks": lambda seed: DynamicBayesianNetwork(None, CROSS, DROPOUT, rngs=nnx.Rngs(seed)),
}


@jax.jit
def predicted(graphdef, state):
    model = nnx.merge(graphdef, state)
    names = ("predict_clicks", "predict_conditional_clicks", "predict_relevance")
    return [getattr(model, name)(BATCH) for name in names]


def predictions(model):
    return predicted(*nnx.split(model))


def check_equal(one, other):
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)


IN_DEFAULT = ("PBM, wide rows", "DBN, networks")
EACH = [
    pytest.param(name, marks=() if name in IN_DEFAULT else pytest.mark.nightly) for name in MODELS
]


@pytest.mark.parametrize("name", EACH)
def test_a_loaded_model_is_the_saved_one(name, tmp_path):
    model, other = (fill_tables(MODELS[name](seed), seed) for seed in (0, 1))
    for each in (model, other):
        each.eval()
    save_model(model, tmp_path / "model.npz")
    assert any((a != b).any() for a, b in zip(state_of(model), state_of(other), strict=True))
    assert load_model(other, tmp_path / "model.npz") is other
    check_equal(state_of(model), state_of(other))
    check_equal(predictions(model), predictions(other))


def pbm(posterior, pairs=PAIRS):
    tower = EmbeddingParameterConfig(posterior=posterior)
    return PositionBasedModel(RANKS, pairs, attraction=tower, rngs=nnx.Rngs(0))


PRIOR = {
    "attraction/table/prior/log_precision": (),
    "attraction/table/prior/mean": (1,),
}
BY_RANK = {"attraction/table/prior/slopes": (2, 1), "attraction/table/log_ranks": (3,)}


def test_arrays_are_named_by_their_path(tmp_path):
    tables = {
        "none": {"attraction/table": (PAIRS + 1, 1)},
        "normal": {"attraction/table": (PAIRS + 1, 2), **PRIOR},
        "normal_by_rank": {"attraction/table": (PAIRS + 1, 3), **PRIOR, **BY_RANK},
    }
    others = {"attraction/baseline": (), "examination/weight": (RANKS + 1,)}
    for posterior, table in tables.items():
        save_model(pbm(posterior), tmp_path / "model.npz")
        with np.load(tmp_path / "model.npz") as stored:
            shapes = {name: stored[name].shape for name in stored}
        assert shapes == others | table, posterior


def test_posteriors_are_loaded_as_they_were_saved(tmp_path):
    rng, model, other = np.random.default_rng(0), pbm("normal_by_rank"), pbm("normal_by_rank")
    learned = nnx.state(model, (nnx.Param, Table))
    drawn = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), "float32"), learned)
    nnx.update(model, drawn)
    save_model(model, tmp_path / "model.npz")
    load_model(other, tmp_path / "model.npz")
    check_equal(state_of(model), state_of(other))
    assert other.attraction.posterior(BATCH)[1] is not None


def spoiled(file, name, value, place=0):
    """The arrays of a model with one number, or the type of an array, changed."""
    with np.load(file) as stored:
        arrays = {key: stored[key] for key in stored}
    if isinstance(value, type):
        arrays[name] = arrays[name].astype(value)
    else:
        arrays[name].reshape(-1)[place] = value
    np.savez(file, **arrays)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e38, -1e31])
def test_numbers_that_no_training_leaves_are_refused(tmp_path, value):
    file = tmp_path / "model.npz"
    for name in (*PRIOR, *BY_RANK, "examination/weight", "attraction/table"):
        save_model(pbm("normal_by_rank"), file)
        spoiled(file, name, value)
        with refuses(UserError, str(file), f"in {name}", "1 of ", "Run the experiment again"):
            load_model(pbm("normal_by_rank"), file)


def test_a_logarithm_whose_exponential_overflows_is_refused(tmp_path):
    """It ended exports in a trace."""
    file = tmp_path / "model.npz"
    save_model(pbm("normal_by_rank"), file)
    spoiled(file, "attraction/table/prior/log_precision", 1e3)
    with refuses(UserError, "in attraction/table/prior/log_precision", "beyond 80"):
        load_model(pbm("normal_by_rank"), file)


@pytest.mark.parametrize("value", [np.nan, -np.inf, 1e38, np.inf])
def test_only_ranks_of_documents_that_are_never_shown_are_infinite(tmp_path, value):
    """They are in the last column."""
    file = tmp_path / "model.npz"
    save_model(pbm("normal_by_rank"), file)
    spoiled(file, "attraction/table", value, place=-1)
    if value == np.inf:
        table = load_model(pbm("normal_by_rank"), file).attraction.table.get_value()
        assert np.isinf(table.values).sum() == 1
        return
    with refuses(UserError, "1 of ", "in attraction/table"):
        load_model(pbm("normal_by_rank"), file)


@pytest.mark.parametrize("kind", [str, bytes, complex])
def test_arrays_of_another_type_are_refused(tmp_path, kind):
    file = tmp_path / "model.npz"
    save_model(pbm("none"), file)
    spoiled(file, "examination/weight", kind)
    with refuses(ValueError, str(file), "examination/weight differ"):
        load_model(pbm("none"), file)


@pytest.mark.parametrize("features", [1, pytest.param(3, marks=pytest.mark.nightly)])
def test_a_model_without_posteriors_is_loaded_as_numbers(features, tmp_path):
    """As the files of earlier versions, into what is a table of posteriors today."""
    points, posteriors = (
        PositionBasedModel(
            RANKS,
            PAIRS,
            attraction=EmbeddingParameterConfig(embedding_features=features, posterior=posterior),
            rngs=nnx.Rngs(seed),
        )
        for seed, posterior in enumerate(("none", "normal"))
    )
    save_model(fill_tables(points), tmp_path / "model.npz")
    load_model(posteriors, tmp_path / "model.npz")
    check_equal(predictions(posteriors), predictions(points))


def test_a_file_of_another_size_leaves_posteriors_as_they_are(tmp_path):
    save_model(pbm("none"), tmp_path / "model.npz")
    model = pbm("normal", PAIRS + 1)
    with refuses(ValueError, "model.npz", "attraction/table differ"):
        load_model(model, tmp_path / "model.npz")
    assert model.attraction.posterior(BATCH)[1] is not None


def test_another_structure_is_an_error_that_names_file_and_arrays(tmp_path):
    others = [
        (pbm("normal", PAIRS + 1), ["attraction/table"]),
        (PositionBasedModel(RANKS + 1, PAIRS, rngs=nnx.Rngs(0)), ["examination/weight"]),
        (
            DocumentCTRModel(PAIRS, rngs=nnx.Rngs(0)),
            ["attraction/baseline", "ctr/table", "examination/weight"],
        ),
        (MODELS["PBM, wide rows"](0), ["attraction/projection", "attraction/table"]),
    ]
    save_model(MODELS["PBM"](0), tmp_path / "model.npz")
    for model, named in others:
        before = state_of(model)
        with refuses(ValueError, "model.npz", "another model", *named):
            load_model(model, tmp_path / "model.npz")
        check_equal(before, state_of(model))


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="model.npz"):
        load_model(MODELS["PBM"](0), tmp_path / "model.npz")


def test_a_model_that_cannot_be_written_leaves_the_one_before(tmp_path):
    """As on a full disk: files may not grow beyond some bytes."""
    file = tmp_path / "model.npz"
    save_model(MODELS["PBM"](0), file)
    before, limits = file.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, limits[1]))
    try:
        with refuses(OSError, "File too large", "model.npz"):
            save_model(MODELS["DBN"](1), file)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [*tmp_path.iterdir()] == [file] and file.read_bytes() == before


def resealed(file, shape):
    """The bytes of a model whose first array states another shape, with the right checksums."""
    with zipfile.ZipFile(file) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    first, stated = next(iter(content)), io.BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stated, header)
    content[first] = stated.getvalue() + content[first][-40:]
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as archive:
        for name, values in content.items():
            archive.writestr(name, values)
    return written.getvalue()


def test_numbers_of_half_the_length_come_back_to_the_bit(tmp_path):
    """NumPy does not know their type, and files hold them as float32."""
    file, weights = tmp_path / "model.npz", jnp.arange(RANKS + 1).astype(jnp.bfloat16) / 3
    model, other = pbm("none"), pbm("none")
    for each in (model, other):
        each.examination.weight.set_value(jnp.zeros_like(weights))
    model.examination.weight.set_value(weights)
    save_model(model, file)
    load_model(other, file)
    save(tmp_path / "c.npz", {"half": weights}, {})
    found, _ = load(tmp_path / "c.npz", {"half": weights})
    for numbers in (other.examination.weight.get_value(), found["half"]):
        assert numbers.dtype == weights.dtype
        check_equal(numbers, weights)


def test_a_damaged_model_is_an_error_in_one_line(tmp_path):
    file, model = tmp_path / "model.npz", MODELS["PBM"](0)
    save_model(model, file)
    whole = file.read_bytes()

    spoilt = (whole[: len(whole) // 2], b"", whole.replace(b"NUMPY", b"NUMPI"), b"no archive")
    # of more numbers than memory, or the file, holds
    spoilt += (resealed(file, shape=(10**11,)), resealed(file, shape=(3,)))
    for content in spoilt:
        file.write_bytes(content)
        with refuses(UserError, "model.npz is damaged (", "Run the experiment again") as caught:
            load_model(model, file)
        assert "\n" not in str(caught.value)


# Trainings

ALONE = training_on(1)


def save(file, state, facts):
    save_training(file, ALONE.blocks(state, state), facts)


def load(file, state):
    return load_training(file, state, ALONE)


def test_what_is_written_is_still_updated_in_place(tmp_path):
    step = jax.jit(lambda table: table + 1, donate_argnums=0)
    table = step(jnp.zeros(1000))
    address = table.unsafe_buffer_pointer()
    save(tmp_path / "c.npz", table, {})
    assert step(table).unsafe_buffer_pointer() == address


@pytest.fixture(scope="module")
def state():
    return {"table": jnp.arange(1000.0), "key": jax.random.key(1), "flag": jnp.array(True)}


def test_a_training_comes_back_and_a_damaged_file_is_distinguished(state, tmp_path):
    file = tmp_path / "c.npz"
    save(file, state, {"epoch": 3})
    found, facts = load(file, state)
    assert facts == {"epoch": 3} and jax.random.key_data(found["key"]).tolist() == [0, 1]
    check_equal([found["table"], found["flag"]], [state["table"], state["flag"]])
    whole = file.read_bytes()
    middle = len(whole) // 2
    changed = whole[:middle] + bytes([whole[middle] ^ 255]) + whole[middle + 1 :]
    for content, reason in (
        (changed, "BadZipFile"),
        (whole[:-100], "BadZipFile"),
        (b"", "EOFError"),
        (b"no archive", "pickle"),
    ):
        file.write_bytes(content)
        with refuses(ValueError, reason):
            load(file, state)


def test_a_full_disk_leaves_the_file_before_and_the_rest_of_the_blocks(tmp_path):
    """Other processes exchange them, and wait for this one."""
    file, state = tmp_path / "c.npz", {"first": jnp.arange(100_000.0), "second": jnp.array(3.0)}
    save(file, {"first": jnp.zeros(3)}, {})
    before, blocks = file.read_bytes(), ALONE.blocks(state, state)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before), limits[1]))
    try:
        with refuses(OSError, "File too large"):
            save_training(file, blocks, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert file.read_bytes() == before
    assert [float(block.values) for block in blocks] == [3.0]


class Touch:
    """Pickled, what creates a file when it is read."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return Path.touch, (self.file,)


def test_a_pickle_in_a_checkpoint_is_not_read(state, tmp_path):
    save(tmp_path / "c.npz", state, {})
    with np.load(tmp_path / "c.npz") as stored:
        objects = np.full(1, Touch(tmp_path / "marker"), object)
        arrays = {name: objects if "table" in name else stored[name] for name in stored}
    with open(tmp_path / "c.npz", "wb") as file:
        np.savez(file, **arrays)
    with refuses(ValueError, "allow_pickle=False"):
        load(tmp_path / "c.npz", state)
    assert not (tmp_path / "marker").exists()


def test_arrays_of_another_training_are_refused(state, tmp_path):
    save(tmp_path / "c.npz", state, {})
    for like, *reasons in (
        ({"table": state["table"]}, "another model or optimizer"),
        (state | {"table": jnp.zeros(999)}, "float32(1000,)", "float32(999,)"),
        (state | {"table": jnp.zeros(1000, jnp.int32)}, "float32(1000,)", "int32(1000,)"),
    ):
        with refuses(ValueError, *reasons):
            load(tmp_path / "c.npz", like)


def test_differences_are_named_as_far_as_a_line_has_room(tmp_path):
    """Four of them; values of at most 60 characters."""
    file = tmp_path / "c.npz"
    save(file, {}, {"settings": {"first": "x" * 60} | {f"{n}": n for n in range(6)}})
    check_same(file, {"settings": {"first": "x" * 60} | {f"{n}": n for n in range(6)}})
    check_same(file, {})
    values = {"first": "y" * 61} | {f"{n}": n for n in range(6)}
    expected = f"it is of a training with first {'x' * 60}, not {'y' * 60}..."
    for changed, more in ((0, ""), (3, ""), (4, " and 1 more"), (6, " and 3 more")):
        given = values | {f"{n}": n + 0.5 for n in range(changed)}
        named = [f"{n} {n}, not {n}.5" for n in range(changed)][:3]
        with refuses(ValueError, ", ".join([expected, *named]) + more) as caught:
            check_same(file, {"settings": given})
        assert str(caught.value).count(", not ") == 1 + len(named)
