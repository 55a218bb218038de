"""Files of lists to rank or to predict that do not fit a sound run."""

import pyarrow.parquet as pq

from scripts.campaign.base import RUNS, run_of
from scripts.campaign.folders import check_tables
from scripts.campaign.logs import FORMATS
from scripts.campaign.logs import lists as drawn
from scripts.campaign.readers import expected, spoil
from scripts.campaign.trials import Trial, area


@area
def lists(trial: Trial) -> None:
    """A file of lists, spoiled, is ranked or predicted by a sound run."""
    rng = trial.rng
    name = rng.choice(RUNS)
    run = run_of(trial.base, name)
    own = "letor" if name == "letor" and rng.random() < 0.7 else rng.choice(("csv", "parquet"))
    path = FORMATS[own].write(drawn(rng, 12), trial.folder)
    if own == "letor":
        path = path / "train.txt"
    kind = rng.choice(("sound", "bytes", "bytes", "cell", "cell", "cell", "place"))
    spoil(kind, path, rng)
    trial.story.append(f"{own}: {kind}")
    ranks = own == "letor" or rng.random() < 0.6
    output = trial.folder / "out"
    asked = "--rank" if ranks else "--predict"
    outcome = trial.run("clickexp-export", run, "--output", output, asked, path)
    if outcome.code != 0:
        trial.check(not (output / "ranking.parquet").exists(), "a table in spite of an error")
        return
    check_tables(trial, output)
    file = output / ("ranking.parquet" if ranks else "predictions.parquet")
    trial.check(file.exists(), f"no {file.name}")
    known = None if own == "letor" else expected(FORMATS[own], path)
    if file.exists() and known is not None:
        rows = pq.read_table(file).num_rows
        counted = known[1] if ranks else known[0]
        trial.check(rows == counted, f"{rows} rows, an independent reader counts {counted}")
