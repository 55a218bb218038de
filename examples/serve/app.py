"""Ranks documents by the newest model, while the next one is fitted: FastAPI, NumPy and Polars, without JAX.

    clickexp-export outputs/2026-01-02 --numpy
    ln -sfn 2026-01-02 outputs/current
    MODEL=outputs/current uvicorn --app-dir examples/serve app:app

    curl -s localhost:8000/rank -H 'content-type: application/json' \
        -d '{"query": "red shoes", "documents": ["a", "b", "c"]}'

`outputs/current` is a link to the folder of a run. Where it points to another run, the next request reads that one; a
run that cannot be read leaves the one before in place.
"""

import importlib.util
import logging
import os
import threading
from pathlib import Path

import polars as pl
from fastapi import FastAPI
from pydantic import BaseModel

log = logging.getLogger("uvicorn.error")
NAMES = "ids.parquet"


class Request(BaseModel):
    """Documents to rank.

    Attributes:
        query: Their query; None where ids are of documents alone.
        documents: Their names, as the log has them.
    """

    query: str | int | None = None
    documents: list[str | int]


class Model:
    """A fitted ranker and the ids of documents.

    Args:
        folder: Of the run, after `clickexp-export FOLDER --numpy`.
    """

    def __init__(self, folder: Path):
        self.run = folder.name
        export = folder / "export"
        spec = importlib.util.spec_from_file_location("ranker", export / "ranker.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        self.scorer = module.Scorer(export / "ranker.npz")
        self.names = pl.read_parquet(folder / NAMES).with_row_index("id", offset=1)

    def ids(self, request: Request) -> pl.Series:
        """Returns the id of each document; 0 for one that no log has, which has the mean of the prior."""
        named = pl.DataFrame({"document": request.documents})
        if "query" in self.names.columns:
            named = named.with_columns(query=pl.lit(request.query))
        keys = named.columns
        named = named.cast({key: self.names.schema[key] for key in keys}, strict=False)
        found = named.join(self.names, on=keys, how="left", maintain_order="left")
        return found["id"].fill_null(0)

    def rank(self, request: Request) -> list[dict]:
        """Returns the documents, the best first, with their scores."""
        scores = self.scorer.score(ids=self.ids(request).to_numpy())
        best = (-scores).argsort(kind="stable")
        return [
            {"document": request.documents[place], "score": float(scores[place])} for place in best
        ]


class Newest:
    """The model that a link points to, read again where it points elsewhere.

    Args:
        link: The link, or the folder of a run.
    """

    def __init__(self, link: Path):
        self._link, self._lock = link, threading.Lock()
        self._target = link.resolve()
        self._model = Model(self._target)

    def model(self) -> Model:
        """Returns the model of now."""
        target = self._link.resolve()
        with self._lock:
            if target != self._target:
                try:
                    self._model = Model(target)
                except Exception:
                    log.exception("%s cannot be served; %s stays", target, self._model.run)
                self._target = target
            return self._model


app = FastAPI()
newest = Newest(Path(os.environ["MODEL"]))


@app.post("/rank")
def rank(request: Request) -> dict:
    """Ranks the documents of a query."""
    model = newest.model()
    return {"run": model.run, "documents": model.rank(request)}
