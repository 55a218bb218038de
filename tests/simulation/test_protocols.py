"""Protocols of unbiased learning to rank on labelled lists: folds, logging policies, examination and trust by rank."""

import itertools
import json
import os
import shutil

import numpy as np
import pytest
from refusals import refuses
from untrained import new_run

from clickexp.errors import UserError
from clickexp.export.export import export
from clickexp.export.fitted import fitted
from clickexp.simulation import open_letor

FEW = dict(sessions=300, val_sessions=50, test_sessions=50, features=3, transform="none")
MANY = {**FEW, "sessions": 20_000}
SIGMAS = 5


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """20 training and 7 test queries of 3 to 6 documents; feature 1 is a number of the document alone."""
    rng = np.random.default_rng(0)
    folder = tmp_path_factory.mktemp("lists")
    for name, queries in (("train", 20), ("test", 7)):
        lines = []
        for query in range(queries):
            for document in range(rng.integers(3, 7)):
                label = [0, 2, 1, 0][document % 4]
                lines.append(
                    f"{label} qid:{query} 1:{rng.normal():.4f} 2:{label + rng.normal():.4f}"
                )
        (folder / f"{name}.txt").write_text("\n".join(lines))
    return folder


def shown(part):
    """Ids of the documents shown, by session."""
    return [
        ids[:length]
        for ids, length in zip(part.column("query_doc_ids"), part.column("lengths"), strict=True)
    ]


def rates_by(part, labels):
    """Click rates and impressions [labels, ranks]."""
    there = np.arange(part.ranks) < part.column("lengths")[:, None]
    of = [(part.column("labels") == label) & there for label in labels]
    counts = np.array([each.sum(axis=0) for each in of])
    clicks = np.array([(each & part.column("clicks")).sum(axis=0) for each in of])
    return clicks / np.maximum(counts, 1), counts


def assert_rates(part, expected):
    """Click rates by label (0, 1, 2) and rank are within five standard errors of the expected ones."""
    rates, counts = rates_by(part, (0, 1, 2))
    assert (counts > 100).sum() >= 6
    error = np.sqrt(expected * (1 - expected) / np.maximum(counts, 1))
    assert (np.abs(rates - expected) <= SIGMAS * error + 1e-6)[counts > 100].all()


def test_each_query_is_tested_in_one_fold(folder):
    tested = []
    for fold in range(5):
        dataset = open_letor(folder, folds=5, fold=fold, **FEW)
        parts = [
            set(part.column("query_ids")) for part in (dataset.train, dataset.val, dataset.ranking)
        ]
        assert not parts[0] & parts[1] and not (parts[0] | parts[1]) & parts[2]
        assert set(dataset.test.column("query_ids")) <= parts[2] and len(parts[2]) in (5, 6)
        tested += parts[2]
        assert dataset.query_doc_pairs == len(dataset.train.features.values) - 1
    assert sorted(tested) == list(range(27))


def test_folds_need_no_test_file(folder, tmp_path):
    (tmp_path / "train.txt").write_text((folder / "train.txt").read_text())
    assert open_letor(tmp_path, folds=2, **FEW).ranking.count == 10
    with refuses(UserError, "20 queries for 21 folds", "Lower folds"):
        open_letor(tmp_path, folds=21, **FEW)
    (tmp_path / "train.txt").rename(tmp_path / "other.txt")
    with refuses(UserError, "train, vali, valid or test"):
        open_letor(tmp_path, folds=2, **FEW)


def test_a_feature_orders_the_lists(folder):
    dataset = open_letor(folder, policy="feature", policy_feature=1, policy_noise=0.0, **FEW)
    feature = dataset.train.features.values[:, 1]
    assert all((np.diff(feature[ids]) <= 0).all() for ids in shown(dataset.train))
    noisy = open_letor(folder, policy="feature", policy_feature=1, policy_noise=0.5, **FEW)
    rising = [(np.diff(feature[ids]) > 0).any() for ids in shown(noisy.train)]
    assert 0.2 < np.mean(rising) < 1


def test_an_oracle_orders_by_labels(folder):
    dataset = open_letor(folder, policy="oracle", policy_noise=0.0, **FEW)
    for labels, length in zip(
        dataset.train.column("labels"), dataset.train.column("lengths"), strict=True
    ):
        assert (np.diff(labels[:length]) <= 0).all()


def test_users_examine_as_given(folder):
    examination = np.array([0.9, 0.5, 1.0, 0.2, 0.0, 0.3])
    by_label = [0.3, 0.6, 1.0]
    settings = dict(
        examination_by_rank=list(examination), attraction_by_label=by_label, positions=6
    )
    part = open_letor(folder, policy="random", policy_noise=5.0, **settings, **MANY).train
    assert_rates(part, np.outer(by_label, examination))


def test_the_examination_of_a_browsing_user_follows_the_distance(folder):
    """At distance 1 examination is certain, at 2 it is impossible: users click without a gap, from the top."""
    user = "clickexp.models.UserBrowsingModel"
    settings = dict(
        examination_by_rank=[1.0] + [0.0] * 5, attraction_by_label=[0.5] * 3, positions=6
    )
    clicks = open_letor(folder, user=user, **settings, **FEW).train.column("clicks")
    assert 0.3 < clicks[:, 0].mean() < 0.7 and not (~clicks[:, :-1] & clicks[:, 1:]).any()


def test_users_trust_as_given(folder):
    k = np.arange(6)
    theta, positive, negative = (
        0.35 / (k + 1) + 0.65 / (1 + 0.05 * k),
        1 / (1 + 0.005 * k),
        0.65 / (k + 1),
    )
    trust = dict(
        trust_positive=list(positive),
        trust_negative=list(negative),
        examination_by_rank=list(theta),
    )
    user, attraction = "clickexp.models.TrustBiasModel", np.array([0.0, 0.5, 1.0])[:, None]
    settings = dict(
        user=user, attraction_by_label=[0.0, 0.5, 1.0], positions=None, policy_noise=5.0, **trust
    )
    part = open_letor(folder, policy="random", **settings, **MANY).train
    assert_rates(part, theta * (positive * attraction + negative * (1 - attraction)))
    with refuses(UserError, "trust_positive and trust_negative", "Give both"):
        open_letor(folder, user=user, trust_positive=[1.0] * 10, **FEW)


def test_all_documents_may_be_shown(folder):
    dataset = open_letor(folder, positions=None, **FEW)
    sizes = np.bincount(dataset.ranking.column("query_ids"), dataset.ranking.column("lengths"))
    assert dataset.positions == 6
    assert (dataset.test.column("lengths") == sizes[dataset.test.column("query_ids")]).all()


def test_a_share_of_sessions_is_in_random_order(folder):
    settings = dict(
        policy="oracle", policy_noise=0.0, randomized_sessions=0.4, attraction_by_label=[0.2] * 3
    )
    part = open_letor(folder, **settings, **MANY).train
    random = part.column("randomized")
    assert abs(random.mean() - 0.4) < SIGMAS * np.sqrt(0.4 * 0.6 / part.count)
    labels, lengths = part.column("labels"), part.column("lengths")
    assert (np.diff(labels[~random & (lengths == 4)][:, :4]) <= 0).all()
    four = labels[random & (lengths == 4)][:, :4]
    assert (abs((four == 2).mean(axis=0) - 0.25) < SIGMAS * np.sqrt(0.25 * 0.75 / len(four))).all()


def test_policy_scores_are_kept_where_asked(folder):
    settings = dict(policy="feature", policy_feature=2, policy_noise=0.0, keep_policy_scores=True)
    dataset = open_letor(folder, **settings, **FEW)
    feature = dataset.train.features.values[:, 2].astype(np.float64)
    expected = np.where(np.arange(len(feature)), (feature - feature.mean()) / feature.std(), 0)
    for part in dataset.parts.values():
        assert np.allclose(
            part.column("policy_scores"), expected[part.column("query_doc_ids")], atol=1e-6
        )
    assert "policy_scores" not in open_letor(folder, **FEW).train.columns


MISFITS = [
    (dict(policy="feature"), ("policy is 'feature'", "policy_feature", "Set policy=feature and")),
    (dict(policy_feature=1), ("policy is 'trained'", "policy_feature=1", "Set policy=feature and")),
    (dict(policy="feature", policy_feature=3), ("policy_feature is 3", "the last feature is 2")),
    (dict(policy="feature", policy_feature=0), ("policy_feature is 0", "0 for all documents")),
    (dict(fold=1), ("fold is 1", "no folds")),
    (dict(folds=3, fold=3), ("fold is 3", "3 folds", "one of 0 to 2")),
    (dict(attraction_by_label=[0.1, 0.2]), ("labels, of up to 2", "0 to 1")),
    (dict(examination_by_rank=[1.0, 0.5]), ("examination_by_rank has 2 numbers", "10 documents")),
    (
        dict(trust_positive=[1.0] * 10, trust_negative=[0.1] * 10),
        ("trust_positive: the user PositionBasedModel", "true_positive", "models.TrustBiasModel"),
    ),
    (
        dict(user="clickexp.models.CascadeModel", examination_by_rank=[1.0] * 10),
        ("examination_by_rank: the user CascadeModel", "models.PositionBasedModel"),
    ),
]


def test_settings_that_do_not_fit_are_refused(folder):
    for settings, parts in MISFITS:
        with refuses(UserError, *parts):
            open_letor(folder, **{**FEW, **settings})


def test_a_fitted_ranker_orders_the_lists(folder, tmp_path):
    """z = w . x of the raw features, from a file as an export writes it."""
    weights = np.array([[0.0], [1.0], [-2.0]])
    write_linear(tmp_path / "ranker.npz", weights)
    settings = dict(policy="ranker", policy_ranker=str(tmp_path / "ranker.npz"), policy_noise=0.0)
    dataset = open_letor(folder, **settings, **FEW)
    scores = dataset.train.features.values @ weights[:, 0]
    assert all((np.diff(scores[ids]) <= 1e-5).all() for ids in shown(dataset.train))
    (tmp_path / "run/export").mkdir(parents=True)
    write_linear(tmp_path / "run/export/ranker.npz", weights)
    of_run = open_letor(folder, **settings | {"policy_ranker": str(tmp_path / "run")}, **FEW)
    assert np.array_equal(
        of_run.train.column("query_doc_ids"), dataset.train.column("query_doc_ids")
    )
    with refuses(UserError, "transform=none", "log1p"):
        open_letor(folder, **settings, **{**FEW, "transform": "log1p"})
    write_linear(tmp_path / "ranker.npz", weights[:2])
    with refuses(UserError, "reads 2 features", "documents have 3"):
        open_letor(folder, **settings, **FEW)
    table = ("z", "row", ["t", "ids"], {})
    write_npz(tmp_path / "ranker.npz", {"features": None, "steps": [table]}, t=np.zeros(5))
    with refuses(UserError, "knows 4 documents"):
        open_letor(folder, **settings, **FEW)
    write_linear(tmp_path / "ranker.npz", weights)
    whole = (tmp_path / "ranker.npz").read_bytes()
    step = {"features": 3, "steps": [("z", "leave", ["x"], {})]}
    for spoilt in (b"nothing", whole[:100], step, np.full((3, 1), np.nan)):
        if isinstance(spoilt, bytes):
            (tmp_path / "ranker.npz").write_bytes(spoilt)
        elif isinstance(spoilt, dict):
            write_npz(tmp_path / "ranker.npz", spoilt)
        else:
            write_linear(tmp_path / "ranker.npz", spoilt)
        with refuses(UserError, "ranker.npz: i", "clickexp-export RUN --numpy"):
            open_letor(folder, **settings, **FEW)
    (tmp_path / "ranker.npz").unlink()
    with refuses(UserError, "ranker.npz: no such file or folder"):
        open_letor(folder, **settings, **FEW)
    (tmp_path / "unexported").mkdir()
    with refuses(UserError, "no ranker.npz", f"clickexp-export {tmp_path / 'unexported'} --numpy"):
        open_letor(folder, **settings | {"policy_ranker": str(tmp_path / "unexported")}, **FEW)


@pytest.mark.parametrize("named", ["run", "run/export/ranker.npz"])
def test_a_cache_does_not_keep_lists_in_the_order_of_another_ranker(folder, tmp_path, named):
    """One of the same name, size and time."""
    file = tmp_path / "run/export/ranker.npz"
    file.parent.mkdir(parents=True)
    settings = {"policy": "ranker", "policy_ranker": str(tmp_path / named), "policy_noise": 0.0}
    for sign in (1, -1):
        weights = sign * np.array([[0.0], [1.0], [-2.0]])
        write_linear(file, weights)
        os.utime(file, (1_700_000_000, 1_700_000_000))
        train = open_letor(folder, cache=tmp_path / "cache", **settings, **FEW).train
        scores = train.features.values @ weights[:, 0]
        assert all((np.diff(scores[ids]) <= 1e-5).all() for ids in shown(train))


def test_scores_by_ids_are_refused_for_other_documents(folder, tmp_path):
    """As many of them, in the files of another order."""
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    lines = (other / "train.txt").read_text().splitlines()
    queries = [[*group] for _, group in itertools.groupby(lines, lambda line: line.split()[1])]
    (other / "train.txt").write_text("\n".join(itertools.chain.from_iterable(reversed(queries))))
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    own = [f"dataset.{key}={value}" for key, value in FEW.items()]
    run = new_run(tmp_path / "run", "model=dctr", "dataset=letor", f"dataset.path={folder}", *own)
    export(run, numpy=True)
    settings = dict(policy="ranker", policy_ranker=str(run), policy_noise=0.0)
    with refuses(UserError, "ranker.npz", "by their ids, and those of these files are others"):
        open_letor(other, **settings, **FEW)
    assert open_letor(copy, **settings, **FEW).train.count == FEW["sessions"]


@pytest.mark.parametrize("name", ["train.txt.scores", "vali.txt", "train.txt.query"])
@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("nowhere")])
def test_what_is_no_file_is_refused_instead_of_waited_for(folder, tmp_path, name, make):
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    (copy / name).unlink(missing_ok=True)
    make(copy / name)
    with refuses(UserError, name, "is no file"):
        open_letor(copy, policy="scores", **FEW)


@pytest.mark.parametrize("model", ["mixture", pytest.param("rctr", marks=pytest.mark.nightly)])
def test_the_scores_of_any_run_order_the_lists(folder, tmp_path, model):
    """Also where they are no sum of towers; click rates by rank score all documents alike."""
    own = [f"dataset.{key}={value}" for key, value in FEW.items()]
    run = new_run(
        tmp_path / "run", f"model={model}", "dataset=letor", f"dataset.path={folder}", *own
    )
    export(run, numpy=True)
    ranker, dataset, _ = fitted(run)
    settings = dict(policy="ranker", policy_ranker=str(run), policy_noise=0.0)
    part = open_letor(folder, **settings, **FEW).train
    ids = np.arange(1, dataset.query_doc_pairs + 1, dtype=np.int32)[:, None]
    alone = {"query_doc_ids": ids, "mask": ids > 0, "positions": np.ones_like(ids)}
    scores = np.append(0, np.asarray(ranker.predict_relevance(alone), np.float64))
    assert (np.ptp(scores[1:]) > 0.01) == (model == "mixture")
    assert all((np.diff(scores[ids]) <= 1e-5).all() for ids in shown(part))


def write_linear(file, weights):
    steps = [("column", "matmul", ["features", "w"], {}), ("z", "squeeze", ["column"], {})]
    write_npz(file, {"features": len(weights), "steps": steps}, w=weights)


def write_npz(file, description, **arrays):
    stated = {"model": "PBM", "transform": "none", "encoding": [], "columns": []}
    text = json.dumps({**stated, **description})
    with open(file, "wb") as stream:
        np.savez(stream, description=np.array(text), **arrays)
