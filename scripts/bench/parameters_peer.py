"""Fits a model of CLAX to a log and writes its parameters and predictions. Imports nothing of clickexp.

    PEER/bin/python scripts/bench/parameters_peer.py LOG.npz RESULT.npz '{"model": "PBM", "pairs": 8000, "seed": 0}'

LOG.npz holds `ids_PART` and `clicks_PART` [sessions, positions] of the parts train, val and test. RESULT.npz gets
`predictions` [test sessions, positions], `seconds`, and one array of logits for each tower, at all its inputs.
"""

import contextlib
import io
import json
import sys
import time
from typing import Any

import clax
import numpy as np
import optax
from flax import nnx
from peer import LEARNING_RATE, build


def batches(log, part, size):
    ids, clicks = log[f"ids_{part}"], log[f"clicks_{part}"]
    positions = np.tile(np.arange(1, ids.shape[1] + 1, dtype=np.int32), (len(ids), 1))
    whole = dict(
        query_doc_ids=ids,
        positions=positions,
        mask=np.ones(ids.shape, bool),
        clicks=clicks.astype(np.float32),
    )
    return [
        {name: values[at : at + size] for name, values in whole.items()}
        for at in range(0, len(ids), size)
    ]


def logits(tower):
    """Of every input that the tower has a row for."""
    if not hasattr(tower.config, "use_feature"):
        return np.asarray(tower.logit())
    return np.asarray(
        tower.logit({tower.config.use_feature: np.arange(tower.config.parameters + 1)})
    )


def main():
    log, settings = np.load(sys.argv[1]), json.loads(sys.argv[3])
    size = settings["batch_size"]
    sizes = dict(query_doc_pairs=settings["pairs"], positions=log["ids_train"].shape[1])
    model = build(settings["model"], sizes, settings["seed"])
    trainer = clax.Trainer(optimizer=optax.adamw(LEARNING_RATE), epochs=50)
    parts = [batches(log, part, size) for part in ("train", "val", "test")]
    start = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()):  # its progress table
        trainer.train(model, *parts[:2])
    seconds = time.perf_counter() - start
    predict = nnx.jit(lambda model, batch: model.predict_conditional_clicks(batch))
    predictions = np.exp(np.concatenate([predict(model, batch) for batch in parts[2]]))
    towers: dict[str, Any] = {
        name: logits(tower)
        for name, tower in vars(model).items()
        if isinstance(tower, clax.parameters.Parameter)
    }
    np.savez(sys.argv[2], predictions=predictions, seconds=seconds, **towers)


main()
