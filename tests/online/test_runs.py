"""Two runs judged by users: from their folders, by the command, with the true user or a fitted one."""

import contextlib
import dataclasses
import io
import json

import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest
from refusals import refuses
from untrained import new_run

from clickexp.cli.compare import main
from clickexp.errors import UserError
from clickexp.export.fitted import fitted
from clickexp.online import User, compare_runs
from clickexp.online.runs import true_user

SIMULATED = [
    "dataset.queries=40",
    "dataset.sessions=400",
    "dataset.positions=5",
    "dataset.documents_per_query=8",
]
FEW = dict(sessions=2000, days=3)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    models = {"pbm": ["model=pbm"], "dctr": ["model=dctr"], "ubm": ["model=ubm"]}
    return {name: new_run(folder / name, *model, *SIMULATED) for name, model in models.items()}


@pytest.fixture(scope="module")
def lists(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lists")
    rng = np.random.default_rng(0)
    for name, queries in (("train", 12), ("test", 6)):
        rows = [
            f"{document % 3} qid:{query} 1:{rng.normal():.3f} 2:{document % 3 + rng.normal():.3f}"
            for query in range(queries)
            for document in range(rng.integers(3, 8))
        ]
        (folder / f"{name}.txt").write_text("\n".join(rows))
    return folder


def test_the_command_writes_prints_and_is_found_by_the_page(runs, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    main(["online", str(runs["pbm"]), str(runs["dctr"]), "--sessions", "2000", "--days", "3"])
    printed = capsys.readouterr().out
    assert (
        "clicks of UBM (true user)" in printed
        and "2,000 sessions over 3 days on 40 lists" in printed
    )
    for name in (
        "click_rate",
        "clicks_per_session",
        "reciprocal_rank",
        "abandonment",
        "interleaving",
    ):
        assert name in printed
    assert all(column in printed for column in ("95% at all looks", "needs", "detectable"))
    folder = runs["dctr"] / "online" / "pbm-true"
    content = json.loads((folder / "online.json").read_text())
    result = compare_runs(runs["pbm"], runs["dctr"], **FEW)
    assert content == json.loads(json.dumps(result.as_dict()))
    assert (folder / "figures/online_click_rate.pdf").exists()
    assert (folder / "figures/online_preference.png").exists()


@pytest.fixture
def undrawn(monkeypatch):
    """Figures take most of the time of the command."""
    monkeypatch.setattr(
        "clickexp.online.command.write_figures", lambda figures, folder: folder / "figures"
    )


@pytest.mark.parametrize("link", ["online", "online/a-true", "online/a-true/figures", "figures"])
def test_a_link_that_came_with_a_run_leads_nothing_elsewhere(tmp_path, monkeypatch, link):
    """It is refused before rankers are built."""
    monkeypatch.setattr(
        "clickexp.online.command.compare_runs", lambda *_, **__: pytest.fail("work starts")
    )
    elsewhere, run = tmp_path / "elsewhere", tmp_path / "b"
    elsewhere.mkdir()
    (run / link).parent.mkdir(parents=True)
    (run / link).symlink_to(elsewhere)
    output = ["--output", str(run)] if link == "figures" else []
    with pytest.raises(SystemExit) as end, contextlib.redirect_stderr(io.StringIO()) as said:
        main(["online", str(tmp_path / "a"), str(run), *output])
    assert end.value.code == 1 and f" leads out of {run}. Remove the link" in said.getvalue()
    assert not [*elsewhere.iterdir()]


def test_rankers_that_judge_themselves_are_pointed_out(runs, capsys):
    few = dict(sessions=500, days=2)
    assert not compare_runs(runs["pbm"], runs["dctr"], runs["ubm"], **few).caveats
    (own,) = compare_runs(runs["pbm"], runs["dctr"], runs["pbm"], **few).caveats
    assert own.startswith("The user is the click model of A")
    (same,) = compare_runs(runs["pbm"], runs["pbm"], **few).caveats
    assert same == "A and B are the same run: what differs is noise."


def test_settings_are_checked_before_anything_is_read(tmp_path):
    with refuses(UserError, "days=5", "3 sessions"):
        compare_runs(tmp_path / "none", tmp_path / "none", sessions=3, days=5)
    with refuses(UserError, "alpha"):
        compare_runs(tmp_path / "none", tmp_path / "none", alpha=2.0)


@pytest.mark.usefixtures("undrawn")
def test_the_command_prints_json(runs, capsys, tmp_path):
    options = [
        "--sessions",
        "500",
        "--days",
        "2",
        "--users",
        "100",
        "--json",
        "--output",
        str(tmp_path / "o"),
    ]
    main(["online", str(runs["pbm"]), str(runs["dctr"]), "--user", str(runs["ubm"]), *options])
    content = json.loads(capsys.readouterr().out)
    assert content == json.loads((tmp_path / "o/online.json").read_text())
    assert content["users"] == 100 and content["user"] == f"UBM ({runs['ubm']})"
    assert len(content["days"]) == 2 and sum(content["days"][-1]["ab"]["sessions"]) == 500


def test_the_true_user_of_labelled_lists_clicks_as_the_simulation_did(lists, tmp_path):
    trust = [
        "dataset.trust_positive=[1,0.9,0.8]",
        "dataset.trust_negative=[0.4,0.2,0.1]",
        "dataset.positions=3",
    ]
    user = "dataset.user._target_=clickexp.models.TrustBiasModel"
    sizes = ["dataset.sessions=30000", "dataset.val_sessions=100", "dataset.test_sessions=30000"]
    given = ["dataset=letor", f"dataset.path={lists}", user, *trust, *sizes]
    run = new_run(tmp_path / "run", "model=trust_bias", *given)
    dataset = fitted(run).log
    model, part = true_user(run, dataset), dataset.test
    label, there = part.column("labels"), np.arange(3) < part.column("lengths")[:, None]
    ids = part.column("query_doc_ids")
    clicks = User(model).clicks(ids, 0)
    for grade in (0, 1, 2):
        of = (label == grade) & there
        n = of.sum(axis=0)
        simulated, again = ((each & of).sum(axis=0) / n for each in (part.column("clicks"), clicks))
        assert (
            abs(simulated - again) < 5 * np.sqrt(2 * simulated * (1 - simulated) / n) + 1e-9
        ).all()


def test_rankers_of_labelled_lists_are_judged_by_the_true_user(lists, tmp_path):
    given = ["dataset=letor", f"dataset.path={lists}", "dataset.sessions=100", "model=pbm"]
    sizes = ["dataset.val_sessions=50", "dataset.test_sessions=50"]
    a = new_run(tmp_path / "a", *given, *sizes, "parameter@attraction=linear")
    b = new_run(tmp_path / "b", *given, *sizes, "dataset.policy=oracle")
    result = compare_runs(a, b, **FEW)
    assert result.lists == 6 and result.user == "PBM (true user)" and result.positions == 10
    other = new_run(tmp_path / "c", *given, *sizes, "dataset.folds=2")
    with refuses(UserError, f"{a} has other lists to rank than {other}", "on the same dataset"):
        compare_runs(a, other, **FEW)


def test_runs_of_other_documents_are_refused(runs, tmp_path):
    larger = new_run(tmp_path / "larger", "model=pbm", *SIMULATED, "dataset.queries=50")
    with refuses(UserError, f"{runs['pbm']} has other lists to rank than {larger}", "same dataset"):
        compare_runs(runs["pbm"], larger, **FEW)
    seed = new_run(tmp_path / "seed", "model=pbm", *SIMULATED, "seed=2")
    for given in ((runs["pbm"], seed), (runs["pbm"], runs["dctr"], seed)):
        with refuses(UserError, f"{runs['pbm']} has other lists to rank than {seed}"):
            compare_runs(*given, **FEW)


def test_clicks_of_a_log_have_no_true_user(runs, tmp_path, capsys):
    rows = {"query_doc_ids": [[1, 2, 3]] * 50, "clicks": [[True, False, False]] * 50}
    pl.DataFrame(rows).write_parquet(tmp_path / "log.parquet")
    run = new_run(
        tmp_path / "run", "model=pbm", "dataset=lists", f"dataset.path={tmp_path / 'log.parquet'}"
    )
    with pytest.raises(SystemExit):
        main(["online", str(run), str(run)])
    error = capsys.readouterr().err
    assert "its clicks are not simulated" in error and "--user RUN" in error
    result = compare_runs(run, run, run, **FEW)  # the log's own lists
    assert result.lists == 5 and result.same == 1.0
    with pytest.raises(SystemExit):
        main(["online", str(tmp_path / "none"), str(run)])
    assert "there is no such folder" in capsys.readouterr().err


def test_a_user_with_tables_of_documents_and_queries_clicks_as_its_model_predicts(tmp_path):
    """With pairs numbered by the simulation, `document_ids` and `query_numbers` follow from them."""
    run = new_run(tmp_path / "run", "model=pbm", "parameter@attraction=hierarchical", *SIMULATED)
    model, dataset, _ = fitted(run)
    for name, term in model.attraction.terms.items():
        values = np.random.default_rng(len(name)).normal(size=term.table.get_value().values.shape)
        term.table.set_value(
            dataclasses.replace(term.table.get_value(), values=jnp.asarray(values, jnp.float32))
        )
    lookups = {name: dataset.ranking.derived[name] for name in ("document_ids", "query_numbers")}
    shown = dataset.ranking.column("query_doc_ids")[:1, :5]
    clicks = User(model, lookups=lookups.values()).clicks(np.repeat(shown, 20_000, axis=0), 0)
    batch = {"query_doc_ids": shown, "positions": np.arange(1, 6)[None], "mask": shown > 0}
    expected = np.exp(
        model.predict_clicks(batch | {name: each.table[shown] for name, each in lookups.items()})
    )[0]
    sd = np.sqrt(expected * (1 - expected) / len(clicks))
    assert (abs(clicks.mean(axis=0) - expected) < 5 * sd).all() and np.ptp(expected) > 0.05
    with refuses(UserError, "the user cannot click on these lists", "document_ids"):
        User(model).check(shown)
