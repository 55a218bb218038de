"""Rankers from simulated clicks on learning-to-rank files: tables of `+experiment=ultr_letor`, with what was learned.

    python scripts/bench/ranking.py --path my/lambdarank                      the protocol that tells methods apart
    python scripts/bench/ranking.py --path my/lambdarank --setting strong     or mild, trust, default, lightgbm
    python scripts/bench/ranking.py --path my/lambdarank --methods softmax softmax_ips pbm

Five folds by query. Mean nDCG (gain 2^label - 1) of the test lists over all queries, and the difference to the first
method with its standard error over queries, in pairs. Examination is the mean over folds, relative to the first one.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from hydra import compose, initialize_config_dir

from clickexp.data import Dataset
from clickexp.experiment.instantiate import constructor
from clickexp.experiment.values import compose_values
from clickexp.propensities import SimulatedPropensities
from clickexp.results.loading import find_runs
from clickexp.results.per_query import samples
from clickexp.runs.run import Run

ROOT = Path(__file__).resolve().parent.parent.parent
EXPERIMENT = ROOT / "conf/experiment/ultr_letor.yaml"
FOLDS = 5
STOP = 0.2
LIGHTGBM = [
    "dataset.policy_noise=0",
    "dataset.positions=null",
    f"dataset.examination_by_rank=[{','.join(f'{(1 - STOP) ** k:.6g}' for k in range(200))}]",
    "dataset.attraction_by_label=[0.4,0.6,0.7,0.8,0.9]",
    "dataset.sessions=201",
    "dataset.val_sessions=50",
    "dataset.test_sessions=50",
]
"""A session for each of as many queries as LightGBM trains on; users stop with probability .2 after each document."""
SETTINGS = {
    "protocol": [],
    "mild": ["dataset.examination_decay=0.75"],
    "strong": ["dataset.examination_decay=2.5"],
    "trust": ["+variant=trusting"],
    "default": ["+variant=letor_defaults"],
    "lightgbm": LIGHTGBM,
}
"""What differs from the experiment."""
QUIET = [
    "report=false",
    "save_model=false",
    "logger=jsonl",
    "progress=off",
    "shared_intervals=false",
]
PBM, OF_PBM = "pbm", "softmax_ips_pbm"
"""A method, and the one that takes its propensities."""


def all_methods() -> list[str]:
    """The methods of the experiment, and the one that the experiment cannot name: weights from the runs of another."""
    listed = yaml.safe_load(EXPERIMENT.read_text())["hydra"]["sweeper"]["params"]["method"]
    return [*listed.replace(" ", "").split(","), OF_PBM]


def metric_of(setting: str) -> str:
    """What LightGBM's test looks at, or nDCG@10."""
    return "ndcg@3" if setting == "lightgbm" else "ndcg@10"


def train(
    path: Path, setting: str, output: Path, methods: Sequence[str], more: Sequence[str]
) -> None:
    """Trains each method on each fold, but for those that earlier calls trained."""
    known = [f"sweeps_dir={output}", f"dataset.path={path}", *SETTINGS[setting], *QUIET, *more]
    command = [sys.executable, "-m", "clickexp", "-m", "+experiment=ultr_letor", *known]
    env = {**os.environ, "WANDB_MODE": "disabled"}
    swept = f"method={','.join(each for each in methods if each != OF_PBM)}"
    subprocess.run(
        [*command, swept, f"hydra.sweep.dir={output}/all"], check=True, stdout=sys.stderr, env=env
    )
    if OF_PBM in methods:
        folders = {run.fold: run.folder for run in runs(output)[PBM]}
        for fold in range(FOLDS):
            own = [
                "method=softmax_ips",
                "propensity=run",
                f"propensity.run={folders[fold]}",
                f"dataset.fold={fold}",
            ]
            to = f"hydra.sweep.dir={output}/{OF_PBM}{fold}"
            subprocess.run([*command, *own, to], check=True, stdout=sys.stderr, env=env)


def runs(output: Path) -> dict[str, list[Run]]:
    """Finished runs by method, in the order of the folds."""
    found: dict[str, list[Run]] = {}
    for run in find_runs([output])[0]:
        method = OF_PBM if "propensity" in run.overrides else str(run.overrides["method"])
        found.setdefault(method, []).append(run)
    return {method: sorted(each, key=lambda run: run.fold or 0) for method, each in found.items()}


def examination(run: Run) -> np.ndarray:
    """What a run learned of examination, or was given, relative to the first position; empty where nothing."""
    learned = [each.relative for each in run.propensity]
    weights = run.weighting
    given = weights.values if weights else run.per_rank.get("examination")
    curve = np.array(learned or given or (), float)
    return curve / curve[:1]


def dataset_of(path: Path, setting: str, fold: int, more: Sequence[str] = ()) -> Dataset:
    """The dataset of a fold."""
    own = [
        "+experiment=ultr_letor",
        *SETTINGS[setting],
        *more,
        f"dataset.path={path}",
        f"dataset.fold={fold}",
    ]
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        node = compose_values(compose("config", own), own).values["dataset"]
    return constructor(node, "dataset")()


def write(path: Path, setting: str, folder: Path, more: Sequence[str]) -> None:
    """Writes the training sessions and test lists of each fold, for ranking_lightgbm.py."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(FOLDS):
        dataset = dataset_of(path, setting, number, more)
        train: dict[str, Any] = {name: dataset.train.column(name) for name in ("clicks", "lengths")}
        assert dataset.ranking is not None and dataset.train.features is not None  # as letor has
        lists: dict[str, Any] = {
            f"test_{name}": dataset.ranking.column(name) for name in ("lengths", "labels")
        }
        ids: dict[str, Any] = {
            "ids": dataset.train.column("query_doc_ids"),
            "test_ids": dataset.ranking.column("query_doc_ids"),
        }
        np.savez(
            folder / f"fold{number}.npz",
            features=dataset.train.features.values,
            **train,
            **lists,
            **ids,
        )


def table(output: Path, setting: str, methods: Sequence[str], truth: np.ndarray) -> Iterator[str]:
    """Lines of a table in Markdown, one per method, with what it learned of examination."""
    metric, known = metric_of(setting), runs(output)
    yield f"| method | nDCG@{metric.rpartition('@')[2]} | vs {methods[0]} | relative examination | largest error |"
    yield "|---|---:|---|---|---:|"
    baseline, rows = None, []
    for method in methods:
        each = np.concatenate(
            [samples(run.folder, metric).pseudo_values() for run in known[method]]
        )
        baseline = each if baseline is None else baseline
        gain, error = each - baseline, np.std(each - baseline) / len(each) ** 0.5
        curves = [curve for curve in map(examination, known[method]) if len(curve)]
        shown, off = "", ""
        if method.endswith("_true"):
            shown = "given"
        elif curves and np.ptp(curves[0]):
            mean = np.mean([curve[: min(map(len, curves))] for curve in curves], axis=0)
            shown = " ".join(f"{value:.2f}" for value in mean[:5])
            off = f"{np.nanmax(np.abs(mean - truth[: len(mean)])):.3f}"
        versus = "" if method == methods[0] else f"{gain.mean():+.3f} ± {error:.3f}"
        rows.append(
            (each.mean(), f"| `{method}` | {each.mean():.3f} | {versus} | {shown} | {off} |")
        )
    yield from (row for _, row in sorted(rows, key=lambda row: -row[0]))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--path", type=Path, required=True, help="folder of the files")
    parser.add_argument("--setting", choices=SETTINGS, default="protocol")
    parser.add_argument(
        "--output", type=Path, default=None, help="folder for the runs; finished ones are reused"
    )
    parser.add_argument(
        "--methods", nargs="*", default=None, help="names of rows; the first is the baseline"
    )
    parser.add_argument(
        "--write", type=Path, default=None, help="only write the data of each fold there"
    )
    given, overrides = parser.parse_known_args()
    path = given.path.resolve()
    if given.write:
        write(path, given.setting, given.write, overrides)
        return
    methods = given.methods or all_methods()
    if OF_PBM in methods and PBM not in methods:
        parser.error(f"{OF_PBM} takes the propensities of {PBM}: name both")
    # other overrides are other runs
    named = "".join(f",{each}" for each in sorted(overrides)).replace("/", "_")
    output = (given.output or Path(tempfile.mkdtemp())).resolve() / f"{given.setting}{named}"
    train(path, given.setting, output, methods, overrides)
    truth = (
        SimulatedPropensities()(dataset_of(path, given.setting, 0, overrides)).of_relevant().values
    )
    for line in table(output, given.setting, methods, np.array(truth, float)):
        print(line)


if __name__ == "__main__":
    main()
