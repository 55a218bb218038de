"""Pages with the user's device and the height of each result: a reader of both, and a model that reads them."""

import jax.numpy as jnp
import polars as pl
from flax import nnx

from clickexp.data import Column, SourceLocation, log_format
from clickexp.data.ingest.lists import Lists
from clickexp.models import Role
from clickexp.models.base import IndependentModel
from clickexp.numerics import log_and, log_sigmoid_pair
from clickexp.parameters import EmbeddingParameterConfig, PositionParameterConfig

COLUMNS = [
    "query_doc_ids",
    "clicks",
    "lengths",
    Column("height", "float32"),
    Column("device", "int32", per="session"),
]


@log_format("pages")
def open_pages(source, log):
    """The dataset in JSON lines, one per page: {"query_doc_ids": [3, 5], "clicks": [0, 1], "height": [1.5, 2], ...}."""
    pages = pl.read_ndjson(source)
    location = SourceLocation(str(source), first=1, unit="line")
    with log.part("sessions", pages["clicks"].list.len().max(), COLUMNS) as pack:
        lists = Lists.of({name: pages[name] for name in pages.columns}, location, pack.schema)
        pack.append(lists.padded(pack.ranks, pack.schema), location)


class PageModel(IndependentModel):
    """P(c_r = 1) = s(position_r + device + slope height_r) a_r: examination depends on device and height."""

    name = "page"

    positions: int
    query_doc_pairs: int
    position: Role = Role(PositionParameterConfig())
    attraction: Role = Role(EmbeddingParameterConfig())
    devices: int = 2

    def setup(self, rngs):
        self.device = nnx.Param(jnp.zeros(self.devices))
        self.slope = nnx.Param(jnp.zeros(()))

    def marginal(self, batch):
        logit = (
            self.position(batch)
            + self.device[...][batch["device"]]
            + self.slope[...] * batch["height"]
        )
        return log_and(log_sigmoid_pair(logit), self.attraction.log_pair(batch))

    def relevance(self, batch):
        return self.attraction.log_prob(batch)
