"""Trainings over several devices, which XLA makes of the CPU in processes apart, against those on one."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import jax
import optax
import pytest
from flax import nnx
from places import ROOT
from refusals import refuses

from clickexp.errors import ConfigError
from clickexp.models import PositionBasedModel, Ranker
from clickexp.models.ranker.learned import RegressionEM
from clickexp.models.ranker.losses import PointwiseLoss
from clickexp.training import Trainer, natural_gradient, spread, trainer
from clickexp.training.sparse.placement import ONE_DEVICE, Spread
from clickexp.training.spread import SeveralDevices, placement_on

PROGRAM = ROOT / "tests/training/on_devices.py"
nightly = pytest.mark.nightly
STEPPING = "pbm ubm dbn ccm points adagrad hash quotients deep deep_cross mixture ranker".split()
"""Cases that train by steps, but for networks that read vectors of documents."""
TWO_UNITS = 2**-22
"""Of float32 between 1 and 2, where perplexities are."""


def run(case, *devices):
    """The process of the program."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
    return subprocess.run(
        [sys.executable, str(PROGRAM), case, *map(str, devices)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def lines_of(case, *devices):
    """What the program prints."""
    done = run(case, *devices)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("case", "devices"),
    [
        ("ubm", [4]),
        ("em", [4]),
        pytest.param("em", [2, 8], marks=nightly),
        pytest.param("em_dbn", [2, 8], marks=nightly),
        pytest.param("counting", [2, 8], marks=nightly),
        pytest.param("pbm", [2, 3, 4, 8], marks=nightly),
        pytest.param("dbn", [2, 4, 8], marks=nightly),
        pytest.param("ccm", [2, 4, 8], marks=nightly),
        pytest.param("points", [2, 8], marks=nightly),
        pytest.param("adagrad", [2, 8], marks=nightly),
        pytest.param("positions", [2, 8], marks=nightly),
        pytest.param("hash", [2, 8], marks=nightly),
        pytest.param("quotients", [2, 8], marks=nightly),
        pytest.param("update", [2, 8], marks=nightly),
        pytest.param("deep", [2, 8], marks=nightly),
        pytest.param("deep_cross", [2, 4, 8], marks=nightly),
        pytest.param("ncm", [2, 4, 8], marks=nightly),
        pytest.param("cacm", [2, 4, 8], marks=nightly),
        pytest.param("cacm_minus", [2, 4, 8], marks=nightly),
        pytest.param("mixture", [2, 4, 8], marks=nightly),
        pytest.param("ranker", [2, 4, 8], marks=nightly),
    ],
)
def test_several_devices_train_as_one(case, devices):
    """Three epochs with validation, and a test; lists of different lengths, rows that many documents of a batch share.

    Sums are of another order: the last digit of numbers of about 8 is 1e-6, and posteriors are rounded by chance.
    """
    found = lines_of(case, *devices)
    assert [line["devices"] for line in found] == devices
    for line in found:
        assert line["loss"] < TWO_UNITS and line["numbers"] < 1e-5


@nightly
@pytest.mark.parametrize("case", STEPPING)
def test_twelve_steps_of_several_devices_are_those_of_one(case):
    """To 1e-6 of numbers, or of the largest of a kind.

    Rows of quotients have 342 documents each, so that their mean log ranks differ by .03 only: standardised, a unit of
    float32, 1.2e-7, is 4e-6. Networks that read vectors of documents are compared above: rows of these move by a
    gradient over its size, which amplifies last digits to 8e-6.
    """
    most = 5e-6 if case == "quotients" else 1e-6
    for line in lines_of("twelve", case, 2, 4, 8):
        assert line["loss"] < TWO_UNITS and line["relative"] < most


@nightly
@pytest.mark.parametrize("case", ["em", "em_dbn", "counting", *STEPPING])
def test_several_devices_end_where_one_does(case):
    """Until the last iteration, or the last epoch after learning rates have fallen.

    Neural models are none of these, and are compared for three epochs above. A network amplifies what it starts from:
    losses of NCM agree to 1e-7 for 16 epochs and are .03 apart after 50. So they are on one device, where a start
    differs by a unit of float32.
    """
    found = lines_of("whole", case, 2, 4, 8)
    for line in found:
        assert line["loss"] < 1e-5 and line["numbers"] < 1e-4


@pytest.mark.parametrize(
    ("case", "devices"),
    [
        ("ubm", [4]),
        pytest.param("ubm", [2, 8], marks=nightly),
        pytest.param("dbn", [2, 8], marks=nightly),
    ],
)
def test_several_devices_judge_as_one(case, devices):
    """Information on shared parameters, and rows that a pass changes; in the score, documents cancel."""
    found = lines_of("intervals", case, *devices)
    assert [line.pop("devices") for line in found] == devices
    for line in found:
        assert line.pop("score") < 1e-4
        assert max(line.values()) < 1e-5


@nightly
def test_batches_that_devices_cannot_share_are_an_error():
    error = run("pbm", 5).stderr
    assert "5 devices cannot share batches of 96 sessions; set trainer.batch_size=100" in error


NOT_SHARED = {
    "an optimizer of whole tables": (
        lambda: PositionBasedModel(3, 20, rngs=nnx.Rngs(0)),
        optax.adam(0.1),
        ("attraction/table", "optimizer=natural_gradient"),
    ),
    "numbers that batches move": (
        lambda: Ranker(
            loss=PointwiseLoss(),
            debias=RegressionEM(),
            positions=3,
            query_doc_pairs=20,
            rngs=nnx.Rngs(0),
        ),
        natural_gradient(),
        ("learned/values", "set trainer.devices=1"),
    ),
}


@pytest.mark.parametrize("name", NOT_SHARED)
def test_what_devices_cannot_share_is_an_error_before_training(name, monkeypatch):
    """Each device would change whole tables by its own sessions, or have numbers of its own."""
    build, optimizer, parts = NOT_SHARED[name]
    Trainer(optimizer).learner(build())
    several = SeveralDevices(Spread(jax.devices()[:1]))
    monkeypatch.setattr(trainer, "training_on", lambda devices: several)
    with refuses(ConfigError, "trainer.devices=", *parts):
        Trainer(optimizer).learner(build())


@nightly
def test_a_checkpoint_of_eight_devices_continues_on_four_and_on_one():
    four, one = lines_of("resumed", 8, 4, 1)
    for line in (four, one):
        assert line["messages"] == ["training continues after epoch 1"]
        assert line["loss"] < 1e-7 and line["relative"] < 1e-6


@nightly
@pytest.mark.parametrize(("case", "loops"), [("ubm", 1), ("dbn", 3), ("em", 1)])
def test_a_step_moves_no_rows_but_those_of_documents(case, loops):
    """Of all instructions, one scatter makes rows, in place; loops run for a known number of steps or ranks."""
    (found,) = lines_of("program", case, 8)
    assert found.pop("scatter") == 1 and found.pop("loops") == loops
    assert found.keys() <= {"parameter", "get-tuple-element", "fusion", "tuple"}
    assert found.get("fusion", 0) <= 1  # the scatter


@nightly
@pytest.mark.parametrize(("case", "width", "numbers"), [("ubm", 4, 2), ("dbn", 8, 4)])
def test_a_step_over_nvidia_gpus_neither_waits_for_the_host_nor_moves_tables(case, width, numbers):
    """As it is lowered: alone the changes by documents, added to the rows of a device, make as many rows.

    The two tables of DBN lie side by side, so that its devices exchange no more often: ids twice, of which the compiler
    makes one, and changes once.
    """
    (found,) = lines_of("lowered", case, 8)
    operations = found["operations"]
    assert (operations["all_gather"], operations["reduce_scatter"]) == (3, 1)
    waits = {"custom_call", "case", "if", "sort", "infeed", "outfeed"}
    assert waits.isdisjoint(operations)
    rows, documents = 126, 96 * 6
    updates = f"tensor<{documents}x1xi32>, tensor<{documents}x{numbers}xf32>"
    table = f"tensor<{rows}x{width}xf32>"
    assert found["by_rows"] == [f"({table}, {updates}) -> {table}"]


def test_no_device_has_more_of_a_table_than_its_share_while_a_model_trains():
    """Not before rows are laid over devices, nor when the model gets its best state."""
    (found,) = lines_of("held", 4)
    assert found["rows"] == found["share"]


def test_models_lie_on_a_device_where_jax_has_no_host(monkeypatch):
    """As with JAX_PLATFORMS=cuda, which an export of several devices would else end with."""
    several = SimpleNamespace(placement=SimpleNamespace(devices=2), lay_model=lambda state: state)
    monkeypatch.setattr(spread, "training_on", lambda devices: several)

    def devices(backend):
        raise RuntimeError(f"Unknown backend {backend}")

    with spread.computing_on(2):
        assert jax.config.jax_default_device == jax.local_devices(backend="cpu")[0]
    monkeypatch.setattr(jax, "local_devices", devices)
    with spread.computing_on(2):
        assert jax.config.jax_default_device is None


def test_devices_that_there_are_not_are_an_error():
    assert placement_on(1) is ONE_DEVICE is placement_on("all")
    for devices in (0, -1, "two", True):
        with pytest.raises(ConfigError, match=r"give a number from 1, or all"):
            placement_on(devices)
    with pytest.raises(ConfigError, match=r"JAX sees 1 \(cpu\); XLA_FLAGS=.*count=3"):
        placement_on(3)
