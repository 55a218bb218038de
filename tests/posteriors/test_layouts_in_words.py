"""Layouts of text: results, exports and propensities have the words of the log, however each log numbers them."""

from functools import partial

import numpy as np
import polars as pl
import pytest
from layout_logs import PAIRS

from clickexp.cli.data import main
from clickexp.data import open_lists
from clickexp.data.description import Numbering
from clickexp.data.inspect.layouts import groupings
from clickexp.experiment.build import build_model
from clickexp.export.examination import examination
from clickexp.models import PositionBasedModel
from clickexp.models.ranker.debias import InversePropensity
from clickexp.parameters.layouts import layouts_of
from clickexp.posteriors.intervals import shared_intervals
from clickexp.posteriors.shared import SharedPosterior
from clickexp.propensities import RunPropensities
from clickexp.runs.run import Run

RATES = {
    "phone": (0.5, 0.3, 0.1),
    "desktop": (0.5, 0.45, 0.4),
    "tablet": (0.3, 0.2, 0.1),
    "tv": (0.2, 0.2, 0.2),
}
COLUMNS = {"device": {"dtype": "category", "per": "session"}}
SPLIT = {"train_sessions": 0.5, "val_sessions": 0.25, "test_sessions": 0.25}


def opened(folder, devices, sessions=240, **options):
    """A log of these devices in turn, which numbers them in that order, as a table and as a dataset."""
    rng = np.random.default_rng(0)
    device = [devices[at % len(devices)] for at in range(sessions)]
    clicks = rng.random((sessions, 3)) < np.array([RATES[each] for each in device])
    rows = pl.DataFrame(
        {
            "query_doc_ids": rng.integers(1, PAIRS + 1, (sessions, 3)).tolist(),
            "clicks": clicks.astype(int).tolist(),
            "device": device,
        }
    )
    file = folder / f"{'-'.join(devices)}.parquet"
    rows.write_parquet(file)
    return rows, open_lists(file, columns=COLUMNS, **SPLIT, **options)


def pbm(dataset):
    settings = PositionBasedModel.with_layouts({}, ["device"])
    return build_model(partial(PositionBasedModel, **settings), dataset, 0)


def test_tables_and_intervals_have_the_words(tmp_path):
    """Click rates by device and rank, counted in the table; an interval for each device that has a posterior."""
    rows, dataset = opened(tmp_path, ["phone", "desktop", "tablet"])
    model = pbm(dataset)
    found = examination(model, dataset.train)
    train = rows[:120].with_columns(rank=pl.Series([[1, 2, 3]] * 120)).explode("clicks", "rank")
    expected = train.group_by("device", "rank").agg(pl.col("clicks").mean(), pl.len())
    both = found.join(expected, on=["device", "rank"])
    assert len(found) == len(both) == 9
    np.testing.assert_allclose(both["click_rate"], both["clicks"])
    assert both["impressions"].to_list() == both["len"].to_list()
    # number 2 is that of the second device in the log
    names = [f"examination/terms/differences/weight[{2 * 4 + at}]" for at in (1, 2, 3)]
    intervals = shared_intervals(model, SharedPosterior(tuple(names), 0.01 * np.eye(3)))
    assert [each.layout for each in intervals] == [{"device": "desktop"}] * 3
    (by_device,) = groupings(dataset.train)
    assert by_device.values == ("phone", "desktop", "tablet")


@pytest.mark.parametrize(
    ("devices", "reference"),
    [
        (["phone", "desktop", "tablet"], "desktop"),
        (["phone", "desktop", "phone"], "phone"),
        (["tablet", "phone", "phone", "tablet", "desktop"], "phone"),
    ],
)
def test_examination_is_relative_to_the_largest_layout_the_first_by_name(
    tmp_path, devices, reference
):
    """In tables, and in intervals, whichever layout these are surest of."""
    _, dataset = opened(tmp_path, devices)
    model = pbm(dataset)
    table = examination(model, dataset.train)
    assert table.filter(device=reference, rank=1)["propensity"].to_list() == [1.0]
    cells = layouts_of(model)
    shown = [cells.cell({"device": each}, at) for each in RATES for at in (1, 2, 3)]
    shown = [cell for cell in shown if cells.knows(cell)]
    names = tuple(f"examination/terms/differences/weight[{cell}]" for cell in sorted(shown))
    for widths in (np.linspace(0.1, 1, len(names)), np.linspace(1, 0.1, len(names))):
        intervals = shared_intervals(model, SharedPosterior(names, np.diag(widths**2)))
        (first,) = (each for each in intervals if each.sd == 0)
        assert (first.layout, first.position) == ({"device": reference}, 1)


def test_another_log_has_the_numbers_of_the_run(tmp_path):
    """Even where it lacks the last device, so that its model has the size of the run's."""
    _, dataset = opened(tmp_path, ["phone", "desktop", "tablet"])
    (tmp_path / "encoding.json").write_text(dataset.encoding.model_dump_json())
    _, other = opened(
        tmp_path, ["desktop", "tv", "phone"], learned=Numbering(tmp_path / "encoding.json")
    )
    assert other.columns["device"] == dataset.columns["device"] == 3
    found = examination(pbm(other), other.train)
    assert set(found["device"]) == {"desktop", "phone", "(none)"}


def test_rankers_find_propensities_by_the_words(tmp_path):
    """Weights 1 / propensity of the device and rank of a run, on a log that numbers devices otherwise."""
    points = [
        {"position": at, "relative": RATES[device][at - 1] / 0.5, "layout": {"device": device}}
        for device in ("phone", "desktop", "tablet")
        for at in (1, 2, 3)
    ]
    result = {"format": 1, "model": "PBM", "dataset": "a", "test_set": "s", "test": {"ll": -1}}
    Run.of(result | {"propensity": points}, folder=tmp_path).write()
    rows, dataset = opened(tmp_path, ["tv", "desktop", "phone"])
    debias = InversePropensity(propensity=RunPropensities(str(tmp_path))).resolved(dataset)
    batch = {
        "query_doc_ids": dataset.train.column("query_doc_ids"),
        "mask": np.ones((120, 3), bool),
        "device": dataset.train.column("device")[:, None],
        "positions": np.arange(1, 4, dtype=np.int32)[None],
    }
    expected = [
        [0.0] * 3 if device == "tv" else [0.5 / rate for rate in RATES[device]]
        for device in rows["device"][:120]
    ]
    np.testing.assert_allclose(debias.weights(batch), expected, rtol=1e-5)
    described = " ".join(debias.weighting(dataset.train).describe())
    assert "no propensity for position 1 of device tv, 2 of device tv" in described
    kept = debias.weighting(dataset.train).result()["layouts"]
    assert {"device": "desktop", "position": "2"} in kept
    curve = [{"position": at, "relative": 0.9**at} for at in (1, 2, 3)]
    result |= {"propensity": points, "shared_propensity": curve}
    Run.of(result, folder=tmp_path).write()
    debias = InversePropensity(propensity=RunPropensities(str(tmp_path))).resolved(dataset)
    of_tv = rows["device"][:120].to_numpy() == "tv"
    expected = np.where(of_tv[:, None], 0.9 ** -np.arange(1, 4), expected)
    np.testing.assert_allclose(debias.weights(batch), expected, rtol=1e-5)
    (described,) = debias.weighting(dataset.train).describe()
    assert "; device tv with the curve that its layouts share" in described


def test_inspect_ends_with_a_run_of_each_device(tmp_path, capsys):
    """Where it warns that one curve does not fit them."""
    opened(tmp_path, ["phone", "desktop"], sessions=4000)
    file, column = tmp_path / "phone-desktop.parquet", "{dtype: category, per: session}"
    main(["inspect", str(file), f"columns.device={column}", "--output", str(tmp_path / "drawn")])
    printed = capsys.readouterr().out
    assert "beyond a factor for each of phone, desktop" in printed
    assert "model=pbm 'examination_by=[device]'" in printed
