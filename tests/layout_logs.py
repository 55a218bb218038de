"""Logs of two devices, on which users look at the same documents in different ways, drawn from PBM."""

import itertools

import numpy as np
from scipy.special import expit

from clickexp.data import Column, Dataset, Sessions

CURVES = {0: np.array([0.9, 0.5, 0.3, 0.2]), 1: np.array([0.9, 0.85, 0.8])}
"""P(examination) by rank on each device, whose lists have that length."""
SAME = {0: CURVES[0], 1: CURVES[0][:3]}
DEVICE = Column("device", "int8", per="session")
PAIRS = 40


def layout_log(sessions, seed=0, curves=CURVES):
    """Lists in random order, a third of them of device 1; the last tenths are for validation and test."""
    rng = np.random.default_rng(seed)
    attraction = expit(rng.normal(-0.8, 1.0, PAIRS + 1))
    device = (rng.random(sessions) < 1 / 3).astype(np.int8)
    lengths = np.where(device, len(curves[1]), len(curves[0])).astype(np.int32)
    there = np.arange(4) < lengths[:, None]
    ids = np.argsort(rng.random((sessions, PAIRS)), axis=1)[:, :4] + 1
    examined = np.stack([np.pad(curve, (0, 4 - len(curve))) for curve in curves.values()])[device]
    clicks = there & (rng.random((sessions, 4)) < examined * attraction[ids])
    log = Sessions.from_arrays(
        query_doc_ids=np.where(there, ids, 0),
        clicks=clicks,
        lengths=lengths,
        query_doc_pairs=PAIRS,
        extra={DEVICE: device},
    )
    cuts = (np.array([0, 0.8, 0.9, 1]) * sessions).astype(int)
    parts = [log.slice(*each) for each in itertools.pairwise(cuts)]
    return Dataset("devices", *parts, PAIRS, 4)
