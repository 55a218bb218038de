r"""Examination of pages with several layouts: pooled, with examination_by, and by ranks numbered across layouts.

python scripts/bench/layouts.py                                          # some minutes
python scripts/bench/layouts.py --sessions 10000 100000 --seeds 0 1 2 --users PBM UBM

Three devices show the same documents in lists of different lengths, which users look at in different ways, a few of
them on the last device. Click rates of documents follow PBM, or UBM with the distance to the last click. A noisy policy
orders lists by attraction.

pooled: one curve. examination_by: a curve per device with a common prior. numbered: the rank is device times slot, one
free number for each. Error: mean of |estimate / truth - 1| of examination relative to the first slot of the first
device, over all other slots of all devices, or of the last device; holds: 95% intervals that hold the truth; test ll:
log-likelihood of a document of the test sessions, less that of the true user.
"""

import argparse
import itertools
from typing import NamedTuple

import numpy as np
from flax import nnx
from report import print_table

from clickexp.data import Column, Dataset, Sessions
from clickexp.data.cells import Cells
from clickexp.data.inspect.layouts import layout_doubts
from clickexp.models import PositionBasedModel, UserBrowsingModel
from clickexp.posteriors.intervals import propensity
from clickexp.posteriors.shared import shared_posterior
from clickexp.training import Trainer

LENGTHS = (10, 8, 5)
SHARES = (0.55, 0.4, 0.05)
"""Of sessions by device."""
CURVES = (
    0.95 * np.arange(1, 11) ** -0.6,
    0.9 * np.array([1, 0.95, 0.9, 0.85, 0.45, 0.4, 0.36, 0.33]),  # two rows of four
    0.9 * np.array([1, 0.55, 0.3, 0.17, 0.1]),
)
METHODS = ("pooled", "examination_by", "numbered")
OFFSETS = np.concatenate([[0], np.cumsum(LENGTHS)])
DEVICE = Column("device", "int8", per="session")
QUERIES, DOCUMENTS = 150, 14


class Log(NamedTuple):
    """Lists of all devices, and what users do.

    Attributes:
        ids: Documents, [session, rank].
        clicks: Clicks.
        lengths: Documents of each list.
        device: Of each list.
        click_rate: P(click | clicks above), [session, rank].
    """

    ids: np.ndarray
    clicks: np.ndarray
    lengths: np.ndarray
    device: np.ndarray
    click_rate: np.ndarray


def simulate(user: str, sessions: int, seed: int) -> Log:
    """Draws a log."""
    rng = np.random.default_rng(seed)
    attraction = 1 / (1 + np.exp(-rng.normal(-1.2, 1.2, (QUERIES, DOCUMENTS))))
    device = rng.choice(len(LENGTHS), sessions, p=SHARES)
    lengths, ranks = np.array(LENGTHS)[device], max(LENGTHS)
    query = rng.integers(0, QUERIES, sessions)
    score = np.log(attraction)[query] + rng.gumbel(0, 1.5, (sessions, DOCUMENTS))
    shown = np.argsort(-score, axis=1)[:, :ranks]
    there = np.arange(ranks) < lengths[:, None]
    curves = np.stack([np.pad(curve, (0, ranks - len(curve))) for curve in CURVES])
    attractive = attraction[query[:, None], shown]
    clicks, rates = np.zeros((2, sessions, ranks))
    last = np.full(sessions, -1)
    for rank in range(ranks):
        examined = curves[device, rank]
        if user == "UBM":  # who look further below a click
            examined = examined ** np.where(last >= 0, 0.5, 1.0)
        rates[:, rank] = examined * attractive[:, rank] * there[:, rank]
        clicks[:, rank] = rng.random(sessions) < rates[:, rank]
        last = np.where(clicks[:, rank] > 0, rank, last)
    ids = np.where(there, 1 + query[:, None] * DOCUMENTS + shown, 0)
    return Log(ids, clicks.astype(bool), lengths, device, rates)


def dataset_of(log: Log, numbered: bool = False) -> Dataset:
    """The log, its last tenths for validation and test; numbered: with ranks of all devices in a row."""
    places = np.arange(1, log.ids.shape[1] + 1)[None] + OFFSETS[log.device][:, None]
    columns = {"query_doc_ids": log.ids, "clicks": log.clicks, "lengths": log.lengths}
    if numbered:
        columns["positions"] = np.where(log.ids > 0, places, 0)
    whole = Sessions.from_arrays(
        **columns, query_doc_pairs=QUERIES * DOCUMENTS, extra={DEVICE: log.device.astype(np.int8)}
    )
    cuts = (np.array([0, 0.8, 0.9, 1]) * whole.count).astype(int)
    parts = [whole.slice(*each) for each in itertools.pairwise(cuts)]
    return Dataset("layouts", *parts, whole.query_doc_pairs, whole.positions)


class Fit(NamedTuple):
    """A fitted method.

    Attributes:
        ratios: Examination relative to the first slot of the first device, by device and slot.
        low: Lower bounds of 95% intervals.
        high: Upper bounds.
        ll: Log-likelihood of a document of the test sessions.
    """

    ratios: np.ndarray
    low: np.ndarray
    high: np.ndarray
    ll: float


def fitted(user: str, method: str, log: Log, seed: int) -> Fit:
    """Fits a method, and reads what it tells of all slots."""
    data = dataset_of(log, numbered=method == "numbered")
    kind = {"PBM": PositionBasedModel, "UBM": UserBrowsingModel}[user]
    settings = kind.with_layouts({}, ["device"]) if method == "examination_by" else {}
    sizes = {"query_doc_pairs": data.query_doc_pairs, "positions": data.positions}
    model = kind(
        **sizes, **settings, click_rate=data.click_rate, columns=data.columns, rngs=nnx.Rngs(seed)
    )
    Trainer(seed=seed).train(model, data.train, data.val)
    found = propensity(model, shared_posterior(model, data.train), data.test)
    cells = Cells((("device", len(LENGTHS)),), max(LENGTHS))
    numbers = np.full((3, OFFSETS[-1]), np.nan)
    for device, length in enumerate(LENGTHS):
        for slot in range(length):
            place = OFFSETS[device] + slot
            key = {
                "pooled": (1 + slot, {}),
                "examination_by": (1 + slot, {"device": str(device)}),
                "numbered": (1 + place, {}),
            }[method]
            each = next(each for each in found if (each.position, each.layout) == key)
            numbers[:, place] = each.relative, each.relative_low or 0, each.relative_high or np.inf
    del cells
    columns = {name: data.test.column(name) for name in ("query_doc_ids", "clicks", "device")}
    batch = {**columns, "device": columns["device"][:, None], "mask": columns["query_doc_ids"] > 0}
    places = np.arange(1, log.ids.shape[1] + 1, dtype=np.int32)[None]
    batch["positions"] = data.test.column("positions") if method == "numbered" else places
    loss = float(model.compute_loss(batch))
    return Fit(*numbers, -loss)
