"""Compressed JSON lines, read some at a time, with text as ids of queries and documents."""

import gzip
import json
from itertools import islice

import numpy as np
import polars as pl

from clickexp.data import SourceLocation, log_format
from clickexp.data.ingest.lists import Lists
from clickexp.data.ingest.numbering import PairIds

COLUMNS = ["query_ids", "query_doc_ids", "clicks", "lengths"]
LINES = 10_000


@log_format("stream")
def open_stream(source, log, *, ranks: int = 10):
    """The dataset in lines {"query": "jax", "results": [{"url": "jax.dev", "clicked": true}, ...]}."""
    ids = PairIds("query_document", log.names)
    first = 1
    with gzip.open(source, "rt") as file, log.part("sessions", ranks, COLUMNS) as pack:
        while lines := [json.loads(line) for line in islice(file, LINES)]:
            location = SourceLocation(str(source), first, unit="line")
            lists = ids.number(lists_of(lines).head(ranks, log))
            pack.append(lists.padded(ranks), location)
            first += len(lines)


def lists_of(lines):
    """Documents one list after another, with the ids of the file."""
    results = [result for line in lines for result in line["results"]]
    return Lists(
        lengths=np.array([len(line["results"]) for line in lines]),
        documents={
            "query_doc_ids": pl.Series([result["url"] for result in results]),
            "clicks": np.array([result["clicked"] for result in results], bool),
        },
        sessions={"query_ids": pl.Series([line["query"] for line in lines])},
    )
