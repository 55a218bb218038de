"""Rankers from simulated clicks on learning-to-rank files: five folds by query, every method in the same table.

    python scripts/bench/ranking.py --path my/lambdarank                     the protocol that tells methods apart
    python scripts/bench/ranking.py --path my/lambdarank --setting trust     trust bias
    python scripts/bench/ranking.py --path my/lambdarank --setting default   the default settings of dataset=letor

nDCG@10 (gain 2^label - 1) of the test lists over all queries, and the difference to the naive softmax loss with its
standard error over queries, in pairs. Examination is the mean over folds, relative to the first position.
"""

import argparse
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import clickexp
from clickexp.evaluation.per_query import samples
from clickexp.simulation import open_letor

RANKS = np.arange(10)
EXAMINATION = 1 / (1 + (1.0 + RANKS) ** 1.5)
THETA = 0.35 / (RANKS + 1) + 0.65 / (1 + 0.05 * RANKS)
"""Examination, and the click rates of relevant and other documents that are examined (Oosterhuis 2022)."""
POSITIVE, NEGATIVE = 1 / (1 + 0.005 * RANKS), 0.65 / (RANKS + 1)
FEATURE = {"policy": "feature", "policy_feature": 34, "policy_noise": 0.5}
SIZES = {"sessions": 32_000, "val_sessions": 8_000, "test_sessions": 2_000}
METRIC = "ndcg@10"


def numbers(values: np.ndarray) -> str:
    """As an override holds them."""
    return "[" + ",".join(f"{each:.6f}" for each in values) + "]"


SETTINGS = {
    "protocol": {**FEATURE, **SIZES, "examination_top": 0.0, "examination_decay": 1.5, "click_noise": 0.1},
    "trust": {
        **FEATURE,
        **SIZES,
        "examination_by_rank": numbers(THETA),
        "trust_positive": numbers(POSITIVE),
        "trust_negative": numbers(NEGATIVE),
        "user._target_": "clickexp.models.TrustBiasModel",
        "attraction_by_label": "[0.0,0.25,0.5,0.75,1.0]",
    },
    "default": SIZES,
}
"""What differs from the defaults of dataset=letor."""
TRUE = {
    "protocol": EXAMINATION,
    "trust": THETA * POSITIVE,
    "default": 1 / (1 + np.exp(1.5 * np.log(RANKS + 1) - 2)),
}
"""P(examination), up to a factor."""


def methods(setting: str) -> dict[str, list[str]]:
    """Overrides by the name of a method."""
    given = ["propensity=given", f"propensity.values={numbers(TRUE[setting] / TRUE[setting][0])}"]
    slope = THETA * (POSITIVE - NEGATIVE)
    offsets = [f"propensity.values={numbers(slope)}", f"propensity.offsets={numbers(THETA * NEGATIVE)}"]
    found = {
        "softmax": [],
        "softmax, IPS, true propensities": ["debias=ips", *given],
        "softmax, IPS, propensities of PBM": ["debias=ips", "propensity=run", "propensity.run={pbm}"],
        "softmax, IPS, harvested": ["debias=ips", "propensity=harvest"],
        "softmax, IPS, click rates": ["debias=ips", "propensity=click_rate"],
        "softmax, DLA": ["debias=dla"],
        "softmax, policy-aware": ["debias=policy_aware", *given],
        "softmax, doubly robust": ["debias=doubly_robust", *given],
        "pointwise": ["loss=pointwise"],
        "pointwise, regression-EM": ["loss=pointwise", "debias=regression_em"],
        "pairwise": ["loss=pairwise"],
        "pairwise, PairDebias": ["loss=pairwise", "debias=pair_debias"],
        "lambda": ["loss=lambda"],
        "lambda, IPS, true propensities": ["loss=lambda", "debias=ips", *given],
        "PBM": ["model=pbm"],
        "two towers, additive": ["model=two_towers"],
    }
    if setting == "trust":
        found["softmax, affine"] = ["debias=affine", "propensity=given", *offsets]
    return found


def runs(path: Path, setting: str, output: Path, names: list[str], more: list[str]) -> Iterator[tuple[str, list[Path]]]:
    """Trains each method on each fold; yields its name and folders."""
    for name in names:
        folders = []
        for fold in range(5):
            folder = output / setting / name.replace(", ", "-").replace(" ", "_") / str(fold)
            folders.append(folder)
            if (folder / "result.json").exists():
                continue
            pbm = str(output / setting / "PBM" / str(fold))
            overrides = [each.format(pbm=pbm) for each in methods(setting)[name]]
            if not any(each.startswith("model=") for each in overrides):
                overrides = ["model=ranker", *overrides]
            data = [f"dataset.{key}={value}" for key, value in SETTINGS[setting].items()]
            clickexp.run(
                *overrides,
                *data,
                *more,
                f"dataset.path={path}",
                "dataset.folds=5",
                f"dataset.fold={fold}",
                f"hydra.run.dir={folder}",
                "shared_intervals=false",
                folder=folder,
                dataset="letor",
                attraction="linear",
                keep_values=True,
                report=False,
                save_model=False,
                logger="jsonl",
                progress="off",
            )
        yield name, folders


def write(path: Path, setting: str, folder: Path) -> None:
    """Writes the training sessions and test lists of each fold, for ranking_lightgbm.py."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(5):
        given = {key: value for key, value in SETTINGS[setting].items() if "." not in key}
        dataset = open_letor(path, folds=5, fold=number, cache="outputs/cache", **given)
        train = {name: dataset.train.column(name) for name in ("clicks", "lengths")}
        lists = {f"test_{name}": dataset.ranking.column(name) for name in ("lengths", "labels")}
        ids = {"ids": dataset.train.column("query_doc_ids"), "test_ids": dataset.ranking.column("query_doc_ids")}
        np.savez(folder / f"fold{number}.npz", features=dataset.train.features.values, **train, **lists, **ids)


def examination(result: dict) -> np.ndarray:
    """What a run learned or was given of it, relative to the first position."""
    learned = [each["relative"] for each in result.get("propensity") or ()]
    given = result.get("weighting", {}).get("values") or (result.get("per_rank") or {}).get("examination")
    curve = np.array(learned or given or (), float)
    return curve / curve[:1]


def table(path: Path, setting: str, output: Path, names: list[str], more: list[str]) -> Iterator[str]:
    """Lines of a table in Markdown, one per method, with what it learned of examination."""
    yield "| method | nDCG@10 | vs softmax | relative examination |"
    yield "|---|---|---|---|"
    baseline = None
    truth = TRUE[setting] / TRUE[setting][0]
    for name, folders in runs(path, setting, output, names, more):
        each = np.concatenate([samples(folder, METRIC).pseudo_values() for folder in folders])
        baseline = each if baseline is None else baseline
        gain, error = each - baseline, np.std(each - baseline) / len(each) ** 0.5
        results = [json.loads((folder / "result.json").read_text()) for folder in folders]
        curves = [curve for curve in map(examination, results) if len(curve)]
        shown = ""
        given = any("offsets" in result.get("weighting", {}) for result in results)
        if curves and not given and np.ptp(curves[0]):
            mean = np.mean(curves, axis=0)
            shown = " ".join(f"{value:.2f}" for value in mean[:5])
            shown += f", off by {np.abs(mean - truth[: len(mean)]).max():.3f}"
        versus = "" if name == "softmax" else f"{gain.mean():+.3f} +- {error:.3f}"
        yield f"| {name} | {each.mean():.3f} | {versus} | {shown} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--path", type=Path, required=True, help="folder of the files")
    parser.add_argument("--setting", choices=SETTINGS, default="protocol")
    parser.add_argument("--output", type=Path, default=None, help="folder for the runs; finished ones are reused")
    parser.add_argument("--methods", nargs="*", default=None, help="names of rows; the first is the baseline")
    parser.add_argument("overrides", nargs="*", help="further overrides of all runs")
    parser.add_argument("--write", type=Path, default=None, help="only write the data of each fold there")
    given = parser.parse_args()
    if given.write:
        write(given.path, given.setting, given.write)
        return
    names = given.methods or list(methods(given.setting))
    output = given.output or Path(tempfile.mkdtemp())
    if "PBM" in names:  # others read its propensities
        list(runs(given.path, given.setting, output, ["PBM"], given.overrides))
    for line in table(given.path, given.setting, output, names, given.overrides):
        print(line, flush=True)


if __name__ == "__main__":
    main()
