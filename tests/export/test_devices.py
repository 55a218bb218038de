"""Exports of a run for several devices, which XLA makes of the CPU in processes apart, against those of one device."""

import os
import shutil
import subprocess
import sys

import numpy as np
import polars as pl
import pytest
from compositions import run_in
from places import ROOT
from polars.testing import assert_frame_equal

from clickexp.cli.export import main
from clickexp.posteriors.documents import EFFECTIVE

PROGRAM = ROOT / "tests/export/over_devices.py"
OPTIONS = ["--predict", "--thompson", "1", "--numpy"]
pytestmark = pytest.mark.nightly


LOG = ["dataset.sessions=6000", "dataset.queries=250", "logger=console", "progress=off"]


def exported(run, devices, folder):
    """The tables of an export on so many devices, which the configuration names, and the arrays of its ranker."""
    copy = shutil.copytree(run, folder / f"on-{devices}")
    config = (copy / "config.yaml").read_text()
    assert config.count("devices: 1\n") == 1
    (copy / "config.yaml").write_text(config.replace("devices: 1\n", f"devices: {devices}\n"))
    arguments = [str(copy), "--rank", str(folder / "lists.parquet"), *OPTIONS]
    if devices == 1:
        main(arguments)
    else:
        path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
        command = [sys.executable, str(PROGRAM), str(devices), *arguments]
        subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, check=True)
    tables = {file.name: pl.read_parquet(file) for file in (copy / "export").glob("*.parquet")}
    tables |= {file.name: pl.read_csv(file) for file in (copy / "export").glob("*.csv")}
    with np.load(copy / "export/ranker.npz") as ranker:
        arrays = {name: ranker[name] for name in ranker if ranker[name].dtype.kind == "f"}
    return tables, arrays


@pytest.mark.parametrize(
    "model", [["model=ubm"], ["model=mixture", "model.components=[pbm,cm]"]], ids=["ubm", "mixture"]
)
def test_several_devices_export_as_one(model, tmp_path):
    """Rows are refined by a pass over the log; the scores of a mixture become a table."""
    run_in(tmp_path / "run", *model, "trainer.epochs=2", *LOG)
    ids = np.random.default_rng(0).integers(1, 5_001, (50, 6))
    pl.DataFrame({"query_doc_ids": ids.tolist()}).write_parquet(tmp_path / "lists.parquet")
    tables, arrays = exported(tmp_path / "run", 1, tmp_path)
    assert {
        "documents.parquet",
        "predictions.parquet",
        "thompson.parquet",
    } < tables.keys() and arrays
    of_one = tables["documents.parquet"].drop_in_place(EFFECTIVE)
    for devices in (2, 4):
        found, others = exported(tmp_path / "run", devices, tmp_path)
        assert found.keys() == tables.keys() and others.keys() == arrays.keys()
        # differences of precisions, which sums of some hundred float32 numbers make
        counts = found["documents.parquet"].drop_in_place(EFFECTIVE)
        np.testing.assert_allclose(counts, of_one, rtol=1e-5, atol=1e-5)
        for name, table in tables.items():
            # what skips say of a document is a small difference, which enlarges that of sums of precisions; by the
            # evidence of all documents, where sums are 3e-8 apart, bases of the prior are 3e-5 more or less probable
            bound = 5e-5 if name == "documents.parquet" else 1e-6
            assert_frame_equal(found[name], table, check_exact=False, rel_tol=0, abs_tol=bound)
        for name, values in arrays.items():
            np.testing.assert_allclose(others[name], values, rtol=0, atol=1e-6)
