"""Chains of runs on small logs with names: ids, counts, refusals, releases, and what an export says of all days."""

import shutil

import numpy as np
import polars as pl
import pytest
from refusals import refuses

import clickexp
from clickexp.cli.update import words_of
from clickexp.errors import ConfigError, DataError
from clickexp.export.export import export
from clickexp.posteriors import shared
from clickexp.posteriors.information import information
from clickexp.runs.store import IDS, MODEL, SHARED
from clickexp.training.loop import Loop
from clickexp.updates.seen import Seen

RANKS, SESSIONS = 4, 300
READ = (
    "dataset=lists",
    "dataset.pair_key=query_document",
    "dataset.columns.query_doc_ids=documents",
    "dataset.columns.query_id=query",
    "dataset.columns.time=time",
)
QUICK = dict(model="pbm", logger="jsonl", progress="off", report=False, **{"trainer.epochs": 5})


def log_of(day, documents, seed, examination=(0.9, 0.6, 0.4, 0.3)):
    """Lists of 3 queries with 4 of their first documents, in random order."""
    rng = np.random.default_rng(seed)
    attraction = np.random.default_rng(0).beta(1, 2, (3, 40))
    query = rng.integers(0, 3, SESSIONS)
    order = rng.random((SESSIONS, documents)).argsort(axis=1)[:, :RANKS]
    clicks = rng.random((SESSIONS, RANKS)) < attraction[query[:, None], order] * examination
    table = pl.DataFrame(
        {
            "query": [f"query {q}" for q in query],
            "documents": [[f"document {d}" for d in row] for row in order],
            "clicks": clicks.astype(int).tolist(),
        }
    )
    return table.with_columns(time=pl.datetime(2026, 1, day))


def fitted(folder, log, *words, **settings):
    file = folder.with_suffix(".parquet")
    log.write_parquet(file)
    words = [f"dataset.path={file}", *READ, *words]
    return clickexp.run(*words, folder=folder, **QUICK | settings)


def contents(folder):
    """All files by name."""
    return {file.name: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


BEFORE = {}
"""The files of a run when it was finished."""


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    run = fitted(tmp_path_factory.mktemp("chain") / "day1", log_of(1, 8, 1))
    BEFORE[run.folder] = contents(run.folder)
    return run


@pytest.fixture(scope="module")
def second(first, tmp_path_factory):
    """New documents, and the known ones in another order."""
    log = log_of(3, 12, 2)
    return fitted(tmp_path_factory.mktemp("chain") / "day2", log, f"prior={first.folder}")


def names_of(run):
    return pl.read_parquet(run.folder / IDS)


def test_documents_keep_their_ids_and_new_ones_come_behind(first, second):
    before, after = names_of(first), names_of(second)
    assert after[: len(before)].equals(before)
    assert len(after) > len(before) and after.n_unique() == len(after)
    update = second.result.update
    assert update.new_documents == len(after) - len(before)
    assert second.result.data.query_doc_pairs == len(after)
    assert len(second.model.attraction.table.get_value().values) == len(after) + 1


def test_a_chain_says_what_it_is_of(first, second):
    update = second.result.update
    assert update.run == str(first.folder) and update.updates == 1
    assert (second.folder / update.beside).resolve() == first.folder.resolve()
    trained = [run.result.data.sessions["train"] for run in (first, second)]
    assert update.sessions == sum(trained)
    origins = [run.result.origin for run in (first, second)]
    assert {*update.logs} == {
        known for each in origins for known in (each.digest, each.sources["dataset.path"])
    }
    assert update.until == max(each.until for each in origins)
    assert update.before["ll"] < 0 and not update.changes
    assert all(abs(each.deviations) > 1 and each.query for each in update.moved)


def test_the_last_log_is_predicted_again(first, second, tmp_path):
    """By the updated model, on the test sessions of the run before, whose ids it knows."""
    backward = second.result.update.backward
    ids = first.dataset.test.column("query_doc_ids")
    clicks = first.dataset.test.column("clicks").astype(bool)
    positions = np.broadcast_to(np.arange(1, RANKS + 1), ids.shape)
    batch = {"query_doc_ids": ids, "positions": positions, "mask": np.ones(ids.shape, bool)}
    log_clicks = np.asarray(second.model.predict_clicks(batch), np.float64)
    ll = np.where(clicks, log_clicks, np.log1p(-np.exp(log_clicks))).mean()
    assert backward["ll"] == pytest.approx(ll, abs=1e-5)
    third = fitted(tmp_path / "day3", log_of(5, 14, 4), f"prior={second.folder}")
    assert third.result.update.backward["ll"] < 0
    (second.folder.with_suffix(".parquet")).rename(tmp_path / "moved.parquet")
    try:
        gone = fitted(tmp_path / "day4", log_of(6, 14, 5), f"prior={second.folder}")
    finally:
        (tmp_path / "moved.parquet").rename(second.folder.with_suffix(".parquet"))
    assert gone.result.update.backward == {}


FIXED = np.arange(RANKS)


@pytest.mark.parametrize(
    ("documents", "position", "warns"),
    [("known", 1, False), ("known", 3, False), ("new", 1, False), ("new", 3, True)],
)
def test_a_day_whose_documents_link_no_positions_warns_of_new_ones_alone(
    first, tmp_path, capsys, documents, position, warns
):
    """Documents keep their places. Examination of the first day, or its documents, tell their ratios nevertheless."""
    rng = np.random.default_rng(7)
    start = 0 if documents == "known" else 20
    names = [f"document {start + at}" for at in FIXED]
    lists = 60
    log = pl.DataFrame(
        {
            "query": ["query 0"] * lists,
            "documents": [names] * lists,
            "clicks": (rng.random((lists, RANKS)) < 0.4).astype(int).tolist(),
            "positions": [(position + FIXED).tolist()] * lists,
        }
    ).with_columns(time=pl.datetime(2026, 1, 2))
    run = fitted(
        tmp_path / "day2", log, f"prior={first.folder}", "dataset.columns.positions=positions"
    )
    printed = capsys.readouterr()
    assert ("cannot be identified" in printed.out + printed.err) == warns
    is_open = [each.relative_low is None for each in run.result.propensity if each.position > RANKS]
    assert is_open == [warns] * len(is_open)


def test_layouts_of_today_need_not_be_those_of_yesterday(tmp_path, monkeypatch):
    """A day without one, and a day with a new one; what is known of each stays where it is."""
    computed = []

    def counted(*given):
        computed.append(1)
        return information(*given)

    monkeypatch.setattr(shared, "information", counted)
    columns = "+dataset.columns.device={dtype: int8, per: session}", "examination_by=[device]"
    runs = []
    for day, devices in enumerate([[0, 1, 2], [0, 1], [0, 1, 3]], 1):
        log = log_of(day, 8, day)
        device = np.resize(np.repeat(devices, 7), len(log))
        words = [*columns, *(f"prior={run.folder}" for run in runs[-1:])]
        log = log.with_columns(device=pl.Series(device, dtype=pl.Int8))
        runs.append(fitted(tmp_path / f"day{day}", log, *words))
        assert len(computed) == day
    towers = [run.model.examination.terms["differences"] for run in runs]
    assert [tower.cells.layouts for tower in towers] == [3, 3, 4]

    def known(rows):
        """What posteriors have beyond the precision of the prior, by layout and position."""
        spreads = np.asarray(rows.values, np.float64)[:, 1].reshape(-1, RANKS + 1)
        return np.exp(float(rows.prior.log_precision)) * np.expm1(-2 * spreads)

    day1, day2, day3 = (known(tower.table.get_value()) for tower in towers)
    assert (day1[:3, 1:] > 0.01).all()
    np.testing.assert_allclose(day2[2], day1[2], rtol=1e-2)  # which the day does not show
    kept = day3[2] > 0  # of those that tell something under the prior of now
    np.testing.assert_allclose(day3[2][kept], day1[2][kept], rtol=1e-2)
    assert kept.any() and (day3[3] > 0.01).any()
    assert not day3[4].any() and not day2[3].any()  # of no layout that is known


def test_two_days_know_more_than_one(first, second):
    """Rows that both days show are surer than after the first, as are ratios of examination."""
    rows = [run.model.attraction.table.get_value() for run in (first, second)]
    sds = [np.asarray(each.deviations(each.values))[:, 0] for each in rows]
    shown = np.arange(1, len(names_of(first)) + 1)
    assert np.mean(sds[1][shown] < sds[0][shown]) > 0.95
    widths = [
        np.mean(
            [np.log(each.relative_high / each.relative_low) for each in run.result.propensity[1:]]
        )
        for run in (first, second)
    ]
    assert widths[1] < widths[0]
    documents = [Seen.load(run.folder / "seen.npz") for run in (first, second)]
    counts = [each.documents["attraction/table"].sums[:, 0].sum() for each in documents]
    assert counts == [RANKS * each for each in (240, 480)]


def test_the_export_of_a_chain_has_the_documents_of_all_days(second, tmp_path):
    alone = log_of(4, 5, 3)
    third = fitted(tmp_path / "day3", alone, f"prior={second.folder}")
    export(third.folder)
    table = pl.read_parquet(third.folder / "export" / "documents.parquet")
    every = names_of(second)
    assert (
        table.select("query", "document")
        .sort("query", "document")
        .equals(every.sort("query", "document"))
    )
    today = table.filter(pl.col("impressions") > 0)
    assert 0 < len(today) < len(table)
    only_earlier = table.filter(pl.col("impressions") == 0)
    assert (only_earlier["attraction_sd"] < table["attraction_sd"].max() + 1e-6).all()
    assert only_earlier["effective_impressions"].mean() > 1


def test_the_same_log_does_not_count_twice(first, second, tmp_path):
    """Whatever the order of its rows, and so the split."""
    for log in log_of(1, 8, 1).reverse(), log_of(3, 12, 2):
        with refuses(DataError, "twice", "prior.again=true"):
            fitted(tmp_path / "again", log, f"prior={second.folder}")
    words = f"prior={first.folder}", "prior.again=true"
    assert fitted(tmp_path / "once-more", log_of(1, 8, 1), *words).result.update.updates == 1


def test_rows_that_earlier_logs_had_are_pointed_out(first, tmp_path, capsys):
    """Where times do not tell."""
    half = log_of(1, 8, 1).head(SESSIONS // 2)
    fitted(tmp_path / "half", half, f"prior={first.folder}", logger="console")
    printed = capsys.readouterr()
    assert "rows of earlier ones" in printed.out + printed.err


def test_what_rows_know_is_forgotten_by_the_days_between_logs(first, tmp_path):
    """A half-life of a day forgets three quarters in two."""
    words = f"prior={first.folder}", "prior.half_life=1.0"
    run = fitted(tmp_path / "day2", log_of(3, 12, 2), *words)
    assert run.result.update.forgotten == pytest.approx(0.75, abs=1e-6)


def test_a_warm_start_takes_parameters_alone(first, tmp_path):
    words = f"prior={first.folder}", "prior.warm=true"
    run = fitted(tmp_path / "day2", log_of(3, 12, 2), *words)
    assert run.result.update.warm and not run.model.attraction.table.get_value().has_sites


def test_runs_that_cannot_be_a_prior_are_refused(first, tmp_path):
    log, prior = log_of(3, 12, 2), f"prior={first.folder}"
    with refuses(ConfigError, "prior.run=", "no such folder"):
        fitted(tmp_path / "a", log, "prior=nowhere")
    with refuses(ConfigError, "finished"):
        fitted(tmp_path / "b", log, f"prior={tmp_path}")
    with refuses(ConfigError, "differ", "clickexp-update"):
        fitted(tmp_path / "c", log, prior, model="dbn")
    with refuses(ConfigError, "posterior", "prior.warm=true"):
        clickexp.run(
            *READ, f"dataset.path={first.folder}.parquet", prior, model="pbm", trainer="em"
        )
    with refuses(ConfigError, "prior.half_life"):
        fitted(tmp_path / "e", log, prior, "prior.half_life=-1.0")
    for name, words in {MODEL: "save_model=true", SHARED: "prior.warm=true"}.items():
        folder = shutil.copytree(first.folder, tmp_path / name.partition(".")[0])
        (folder / name).unlink()
        with refuses(ConfigError, words):
            fitted(tmp_path / "f", log, f"prior={folder}")
    by_document = log, prior, "dataset.pair_key=document"
    with refuses(DataError, "pair_key"):
        fitted(tmp_path / "g", *by_document)


def test_a_changed_layout_is_noticed_and_its_prior_released(tmp_path):
    """The log turns examination around."""
    long = [
        pl.concat([log_of(day, 8, 10 * day + k, e) for k in range(5)])
        for day, e in ((1, (0.9, 0.6, 0.4, 0.3)), (2, (0.4, 0.4, 0.8, 0.9)))
    ]
    before = fitted(tmp_path / "day1", long[0])
    with refuses(ConfigError, "examination", "prior.on_change=release"):
        fitted(tmp_path / "error", long[1], f"prior={before.folder}", "prior.on_change=error")
    after = fitted(tmp_path / "release", long[1], f"prior={before.folder}")
    (change,) = after.result.update.changes
    assert change.parameter == "examination" and set(change.positions) & {3, 4}
    kept = fitted(tmp_path / "keep", long[1], f"prior={before.folder}", "prior.on_change=keep")
    released, held = (run.result.propensity[-1].relative for run in (after, kept))
    assert abs(released - 0.9 / 0.4) < abs(held - 0.9 / 0.4)
    assert kept.result.update.changes == after.result.update.changes


def test_a_changed_layout_of_a_device_is_noticed_and_what_it_knew_released(tmp_path):
    """The second log turns examination around on one of two devices."""
    columns = "+dataset.columns.device={dtype: int8, per: session}", "examination_by=[device]"
    usual = (0.9, 0.6, 0.4, 0.3)
    logs = []
    for day, other in ((1, usual), (2, (0.4, 0.4, 0.8, 0.9))):
        parts = []
        for device, examination in enumerate((usual, other)):
            part = pl.concat(
                [log_of(day, 8, 10 * day + k + 5 * device, examination) for k in range(5)]
            )
            parts.append(part.with_columns(device=pl.lit(device, pl.Int8)))
        order = np.random.default_rng(day).permutation(2 * len(parts[0]))
        logs.append(pl.concat(parts)[order])
    before = fitted(tmp_path / "day1", logs[0], *columns)
    after = fitted(tmp_path / "day2", logs[1], *columns, f"prior={before.folder}")
    (change,) = after.result.update.changes
    assert change.parameter == "examination" and set(change.positions) & {3, 4}
    ratios = {
        each.layout["device"]: each.relative
        for each in after.result.propensity
        if each.position == RANKS
    }
    assert ratios["1"] / ratios["0"] == pytest.approx(0.9 / 0.3, rel=0.35)


def test_an_update_that_is_killed_continues_to_the_same_bits(first, tmp_path, monkeypatch):
    log, words = log_of(3, 12, 2), (f"prior={first.folder}", "trainer.checkpoint_minutes=0")
    whole = fitted(tmp_path / "whole", log, *words)
    save = Loop._save

    def killed(loop, same):
        save(loop, same)
        if len(loop.history) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Loop, "_save", killed)
    with pytest.raises(KeyboardInterrupt):
        fitted(tmp_path / "day2", log, *words)
    monkeypatch.undo()
    again = fitted(tmp_path / "day2", log, *words)
    assert again.result.test == whole.result.test
    for name in (MODEL, SHARED, "seen.npz"):
        one, other = (np.load(run.folder / name) for run in (whole, again))
        assert {*one} == {*other}
        for key in one:
            np.testing.assert_array_equal(one[key], other[key])


def test_the_command_repeats_the_settings_of_the_run(first, tmp_path):
    words = words_of(first.folder, "new.parquet", ["seed=3"])
    assert words[-3:] == ["dataset.path=new.parquet", f"prior.run={first.folder}", "seed=3"]
    assert "dataset.pair_key=query_document" in words and "model=pbm" in words
    assert sum(word.startswith("dataset.path=") for word in words) == 1
    assert words_of(first.folder, "dataset.path=new.parquet", ["seed=3"]) == words
    with refuses(ConfigError, "folder of a run"):
        words_of(tmp_path, "new.parquet", [])


def test_a_run_of_simulated_clicks_is_not_updated(tmp_path):
    simulated = tmp_path / "simulated"
    (simulated / ".hydra").mkdir(parents=True)
    (simulated / ".hydra/overrides.yaml").write_text("- model=pbm\n")
    (simulated / "config.yaml").write_text("dataset: {name: simulated, sessions: 10}\n")
    with refuses(ConfigError, str(simulated), "no log", "run of a log"):
        words_of(simulated, "new.parquet", [])


def test_an_update_leaves_the_run_before_it_as_it_is(first, second):
    assert second.result.update.run == str(first.folder)
    assert contents(first.folder) == BEFORE[first.folder]
