r"""Examination of pages with several layouts: pooled, with examination_by, and by ranks numbered across layouts.

python scripts/bench/layouts.py                                          # 10 minutes on 2 cores
python scripts/bench/layouts.py --sessions 5000 --seeds 0 1 2 3 4 --users UBM

Three devices show the same documents in lists of different lengths, which users look at in different ways, a twentieth
of them on the last device. Users follow PBM, or UBM: below a click they look at a slot with the square root of its
probability. A noisy policy orders lists by attraction.

pooled: one curve. examination_by: a curve per device with a common prior. numbered: the rank is device times slot, with
a free number for each; UBM then has too many for intervals. Error: mean of |estimate / truth - 1| of examination
relative to the first slot of the first device, over all other slots, and over those of the last device. Hold: 95%
intervals that hold the truth. Width: mean difference of their bounds. Test ll: log-likelihood of a document of the test
sessions, less that of the true user. Warns: whether inspect warns of the log; without layouts: of a log of the same
sizes and one curve.
"""

import argparse
import itertools
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from flax import nnx
from report import machine, print_table

from clickexp.data import Column, Dataset, Sessions
from clickexp.data.inspect.doubts import examination_doubts
from clickexp.models import ClickModel, PositionBasedModel, UserBrowsingModel
from clickexp.posteriors.intervals import propensity
from clickexp.posteriors.marginal import improve_examination
from clickexp.posteriors.policy_prior import lists_shown
from clickexp.posteriors.shared import shared_posterior
from clickexp.training import Trainer

SHARES = (0.55, 0.4, 0.05)
"""Of sessions by device."""
CURVES = (
    0.95 * np.arange(1, 11) ** -0.6,
    0.9 * np.array([1, 0.95, 0.9, 0.85, 0.45, 0.4, 0.36, 0.33]),  # two rows of four
    0.9 * np.array([1, 0.55, 0.3, 0.17, 0.1]),
)
SAME = tuple(CURVES[0][: len(curve)] for curve in CURVES)
LENGTHS = tuple(map(len, CURVES))
OFFSETS = np.concatenate([[0], np.cumsum(LENGTHS)])
METHODS = ("pooled", "examination_by", "numbered")
MODELS = {"PBM": PositionBasedModel, "UBM": UserBrowsingModel}
DEVICE = Column("device", "int8", per="session")
QUERIES, DOCUMENTS = 150, 14


class Log(NamedTuple):
    """Lists of all devices, and what users do.

    Attributes:
        ids: Documents, [session, rank], 0 behind the last.
        clicks: Clicks.
        lengths: Documents of each list.
        device: Of each list.
        examined: P(examination | clicks above), [session, rank].
        click_rate: P(click | clicks above).
    """

    ids: np.ndarray
    clicks: np.ndarray
    lengths: np.ndarray
    device: np.ndarray
    examined: np.ndarray
    click_rate: np.ndarray


def simulate(user: str, sessions: int, seed: int, curves: Sequence[np.ndarray] = CURVES) -> Log:
    """Draws a log."""
    rng = np.random.default_rng(seed)
    attraction = 1 / (1 + np.exp(-rng.normal(-1.2, 1.2, (QUERIES, DOCUMENTS))))
    device = rng.choice(len(LENGTHS), sessions, p=SHARES)
    lengths, ranks = np.array(LENGTHS)[device], max(LENGTHS)
    query = rng.integers(0, QUERIES, sessions)
    score = np.log(attraction)[query] + rng.gumbel(0, 1.5, (sessions, DOCUMENTS))
    shown = np.argsort(-score, axis=1)[:, :ranks]
    there = np.arange(ranks) < lengths[:, None]
    by_device = np.stack([np.pad(curve, (0, ranks - len(curve))) for curve in curves])
    attractive = attraction[query[:, None], shown]
    clicks, examined = np.zeros((2, sessions, ranks))
    has_clicked = np.zeros(sessions, bool)
    for rank in range(ranks):
        power = np.where(has_clicked, 0.5, 1.0) if user == "UBM" else 1.0
        examined[:, rank] = by_device[device, rank] ** power * there[:, rank]
        clicks[:, rank] = rng.random(sessions) < examined[:, rank] * attractive[:, rank]
        has_clicked |= clicks[:, rank] > 0
    ids = np.where(there, 1 + query[:, None] * DOCUMENTS + shown, 0)
    return Log(ids, clicks.astype(bool), lengths, device, examined, examined * attractive)


def dataset_of(log: Log, numbered: bool = False) -> Dataset:
    """The log, its last tenths for validation and test; numbered: with ranks of all devices in a row."""
    places = np.arange(1, log.ids.shape[1] + 1)[None] + OFFSETS[log.device][:, None]
    columns: dict[str, Any] = {
        "query_doc_ids": log.ids,
        "clicks": log.clicks,
        "lengths": log.lengths,
    }
    if numbered:
        columns["positions"] = np.where(log.ids > 0, places, 0)
    whole = Sessions.from_arrays(
        **columns, query_doc_pairs=QUERIES * DOCUMENTS, extra={DEVICE: log.device.astype(np.int8)}
    )
    train, val, test = (whole.slice(*each) for each in itertools.pairwise(_cuts(whole.count)))
    return Dataset("layouts", train, val, test, whole.query_doc_pairs, whole.positions)


def figures(user: str, method: str, log: Log, seed: int) -> dict[str, float]:
    """Fits a method, and compares it with the truth."""
    data = dataset_of(log, numbered=method == "numbered")
    kind = MODELS[user]
    settings = kind.with_layouts({}, ["device"]) if method == "examination_by" else {}
    sizes = {"query_doc_pairs": data.query_doc_pairs, "positions": data.positions}
    model = kind(
        **sizes, **settings, click_rate=data.click_rate, columns=data.columns, rngs=nnx.Rngs(seed)
    )
    Trainer(seed=seed).train(model, data.train, data.val)
    queries = lists_shown(model, data.train)
    posterior = None if queries is None else improve_examination(model, data.train, queries)
    found = {"test ll": _log_likelihood(model, data, log, numbered=method == "numbered")}
    posterior = posterior or shared_posterior(model, data.train)
    if posterior is None:
        return found
    known = {
        (each.position, *each.layout.values()): each
        for each in propensity(model, posterior, data.test)
    }
    slots = [(device, slot) for device, length in enumerate(LENGTHS) for slot in range(length)]
    keys = {
        "pooled": [(1 + slot,) for _, slot in slots],
        "examination_by": [(1 + slot, str(device)) for device, slot in slots],
        "numbered": [(1 + slot + OFFSETS[device],) for device, slot in slots],
    }[method]
    truth = np.array([log.examined[log.device == device, slot].mean() for device, slot in slots])
    reference = next(at for at, key in enumerate(keys) if known[key].sd == 0)
    truth /= truth[reference]
    errors = [abs(known[key].relative / true - 1) for key, true in zip(keys, truth, strict=True)]
    held = [
        (known[key].relative_low or 0) <= true <= (known[key].relative_high or np.inf)
        for key, true in zip(keys, truth, strict=True)
    ]
    others = [at for at in range(len(slots)) if at != reference]
    last = [at for at in others if slots[at][0] == len(LENGTHS) - 1]
    widths = []
    for at in others:
        low, high = known[keys[at]].relative_low, known[keys[at]].relative_high
        if low is not None and high is not None:
            widths.append(high - low)
    return found | {
        "width": float(np.mean(widths)),
        "error": float(np.mean([errors[at] for at in others])),
        "last device": float(np.mean([errors[at] for at in last])),
        "hold": float(np.mean([held[at] for at in others])),
    }


def _log_likelihood(model: ClickModel, data: Dataset, log: Log, numbered: bool) -> float:
    """Of a document of the test sessions, less that of the true user."""
    start = _cuts(len(log.ids))[2]
    ids, rates, clicks = (each[start:] for each in (log.ids, log.click_rate, log.clicks))
    places = np.arange(1, ids.shape[1] + 1, dtype=np.int32)[None]
    batch = {
        "query_doc_ids": ids.astype(np.int32),
        "clicks": clicks,
        "mask": ids > 0,
        "device": log.device[start:, None].astype(np.int32),
        "positions": data.test.column("positions") if numbered else places,
    }
    true = np.log(np.where(clicks, rates, 1 - rates))[ids > 0].mean()
    return -float(model.compute_loss(batch)) - true


def _cuts(sessions: int) -> list[int]:
    return (np.array([0, 0.8, 0.9, 1]) * sessions).astype(int).tolist()


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--users", nargs="+", default=["PBM", "UBM"], choices=MODELS)
    parser.add_argument("--sessions", nargs="+", type=int, default=[5_000, 20_000])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    chosen = parser.parse_args()
    rows = []
    for user, sessions in itertools.product(chosen.users, chosen.sessions):
        logs = [simulate(user, sessions, seed) for seed in chosen.seeds]
        same = [simulate(user, sessions, seed, SAME) for seed in chosen.seeds]
        warns, false = (
            sum(bool([*examination_doubts(dataset_of(log))]) for log in each)
            for each in (logs, same)
        )
        for method in METHODS:
            pairs = zip(logs, chosen.seeds, strict=True)
            fits = [figures(user, method, log, seed) for log, seed in pairs]
            mean = {name: statistics.mean(fit[name] for fit in fits) for name in fits[0]}
            shown = [
                f"{mean[name]:.3f}" if name in mean else "-"
                for name in ("error", "last device", "hold", "width")
            ]
            warned = f"{warns}, {false} of {len(logs)}" if method == "pooled" else ""
            rows.append([user, f"{sessions:,}", method, *shown, f"{mean['test ll']:+.4f}", warned])
    headers = ["users", "sessions", "method", "error", "last device", "hold", "width", "test ll"]
    print_table(machine(), [*headers, "warns, without layouts"], rows)


if __name__ == "__main__":
    main()
