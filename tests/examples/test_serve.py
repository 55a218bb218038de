"""The program that serves the newest model, in a process that has no JAX."""

import json
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import polars as pl
from flax import nnx
from places import ROOT

from clickexp.data import Dataset, Sessions
from clickexp.export.ranker import described, ranker_files
from clickexp.models import PositionBasedModel
from clickexp.parameters import EmbeddingParameterConfig, Rows

CLIENT = """
import json, os, sys
sys.modules["jax"] = None  # an import of it fails
sys.modules["clickexp"] = None
from fastapi.testclient import TestClient
import app
client, said = TestClient(app.app), []
def ask(**request):
    said.append(client.post("/rank", json=request).json())
ask(query="q", documents=["a", "b", "unknown", "c"])
os.remove("current"); os.symlink("day2", "current")
ask(query="q", documents=["a", "b", "c"])
os.remove("current"); os.symlink("broken", "current")
ask(query="q", documents=["a"])
print(json.dumps(said))
"""


def written(folder, logits):
    """A run whose documents a, b, c have attraction logits, from id 1; id 0 is of others."""
    folder.mkdir()
    names = pl.DataFrame({"query": ["q"] * 3, "document": ["a", "b", "c"]})
    names.write_parquet(folder / "ids.parquet")
    tower = EmbeddingParameterConfig(posterior="none", add_baseline=False)
    model = PositionBasedModel(3, 3, attraction=tower, rngs=nnx.Rngs(0))
    model.attraction.table.set_value(Rows(jnp.asarray(logits, jnp.float32)[:, None], 1))
    lists = Sessions.from_arrays(
        query_doc_ids=np.array([[1, 2, 3]]), clicks=np.array([[False, True, False]])
    )
    ranker = described(model, Dataset("d", lists, lists, lists, 3, 3))
    (folder / "export").mkdir()
    for name, content in ranker_files(ranker).items():
        (folder / "export" / name).write_bytes(content)


def test_the_newest_model_is_served_without_jax(tmp_path):
    written(tmp_path / "day1", [0.0, 1.0, 3.0, -1.0])
    written(tmp_path / "day2", [0.0, 5.0, 3.0, 4.0])
    (tmp_path / "broken").mkdir()
    (tmp_path / "current").symlink_to("day1")
    done = subprocess.run(
        [sys.executable, "-c", CLIENT],
        cwd=tmp_path,
        env={"MODEL": "current", "PYTHONPATH": str(ROOT / "examples" / "serve")},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    first, second, third = json.loads(done.stdout)
    assert [each["document"] for each in first["documents"]] == ["b", "a", "unknown", "c"]
    assert [each["document"] for each in second["documents"]] == ["a", "c", "b"]
    assert [first["run"], second["run"], third["run"]] == ["day1", "day2", "day2"]
