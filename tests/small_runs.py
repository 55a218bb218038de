"""Folders as runs leave them, written by hand."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import yaml

from clickexp.runs.run import Run

DIRECTIONS = {
    **dict.fromkeys(("ppl", "cond_ppl", "ece"), False),
    **dict.fromkeys(("ll", "ndcg", "mrr", "map", "map_min", "auc"), True),
}
"""What the classes of these metrics state."""


def stated(*names):
    """What a result states of these metrics."""
    return {
        name: DIRECTIONS[name.partition("@")[0]]
        for name in names
        if name.partition("@")[0] in DIRECTIONS
    }


def result_of(content, **beside):
    """A run whose document has these keys. beside: what is not in the document, such as the folder."""
    needed = {"format": 1, "model": "UBM", "dataset": "clicks", "test_set": "set-a"}
    directions = {"higher_is_better": stated(*content.get("test", ()))}
    return Run.of(needed | directions | content, **beside)


def write_run(
    folder: Path,
    model: str = "UBM",
    seed: int = 1,
    test=(("ll", -0.5), ("ppl", 1.5)),
    *,
    test_set="set-a",
    settings=(),
    epochs=3,
    log_probs=None,
    queries=None,
    **result,
):
    """settings: pairs of a key of the optimizer and its value, each an override. log_probs: [session, rank], kept,
    of these queries."""
    folder.mkdir(parents=True)
    test = dict(test)
    content = {
        "format": 1,
        "model": model,
        "dataset": "clicks",
        "seed": seed,
        "val": {"ll": test.get("ll")},
        "test": test,
        "higher_is_better": stated(*test, *result.get("val", ())),
        "per_rank": {
            "ll": [test.get("ll", -0.5) * 1.2, test.get("ll", -0.5) * 0.8],
            "examination": [1.0, 0.5],
            "sessions": [50, 40],
        },
        "curves": {"ece": {"predicted": [[0.1, 0.2], [0.7, None]], "observed": [[0.2, 0.2], [0.6, None]],
                           "documents": [[30, 20], [20, 0]]}},
        "train": {"epochs": epochs, "seconds": 2.0 * seed, "training_seconds": 2.0 * seed},
        "parameters": 1000,
        "test_set": test_set,
        "environment": {"device": "cpu", "jax": "0.10.2"},
        "config_hash": f"{model}{seed}{settings}",
    }  # fmt: skip
    if log_probs is not None:
        frame = {
            "query_id": np.arange(len(log_probs)) if queries is None else queries,
            "observed_conditional_log_prob": np.asarray(log_probs),
        }
        pl.DataFrame(frame).write_parquet(
            folder / "test_sessions.parquet",
            metadata={"rank_normalization": "own"},
        )
        content["intervals"] = {"ll": [test["ll"] - 0.01, test["ll"] + 0.01]}
    write_json(folder / "result.json", content | result)
    tower = {"_target_": "clickexp.parameters.EmbeddingParameterConfig", "seed": 0}
    config = {
        "seed": seed,
        "keep_values": log_probs is not None,
        "dataset": {"name": "clicks", "path": "my/clicks"},
        "model": {"_target_": f"clickexp.models.{model}", "attraction": tower},
        "optimizer": dict(settings),
        "trainer": {"seed": seed},
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / ".hydra").mkdir()
    overrides = [
        f"model={model.lower()}",
        f"seed={seed}",
        *(f"optimizer.{key}={value}" for key, value in settings),
    ]
    (folder / ".hydra/overrides.yaml").write_text(yaml.safe_dump(overrides))
    lines = [
        {"epoch": n, "train/loss": 0.6 / n, "val/ll": -0.6 / n, "seconds": 0.5, "sessions": 100}
        for n in range(1, epochs + 1)
    ]
    if lines:
        lines[0]["compile_seconds"] = 0.25
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def write_json(file: Path, content) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content))
