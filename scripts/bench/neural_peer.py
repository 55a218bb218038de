"""Training steps of NCM and CACM-minus in PyTorch, of the size of ours, on batches that neural.py wrote.

    PEER/bin/python scripts/bench/neural_peer.py BATCHES.npz '{"model": "ncm", "rows": "sparse", "threads": 2}'

Prints a line of JSON: processor and wall seconds a session.
"""

import json
import sys
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional

LEARNING_RATE = 1e-3


class NCM(nn.Module):
    """A GRU that reads the query, then each document with the click above it."""

    def __init__(self, sizes: dict[str, int], hidden: int, vectors: int, sparse: bool):
        super().__init__()
        self.documents = nn.Embedding(sizes["document_ids"] + 1, vectors, sparse=sparse)
        self.queries = nn.Embedding(sizes["query_numbers"] + 1, vectors, sparse=sparse)
        self.recurrent = nn.GRU(2 * vectors + 1, hidden, batch_first=True)
        self.output = nn.Linear(hidden, 1)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        documents, query = (
            self.documents(batch["document_ids"]),
            self.queries(batch["query_numbers"][:, :1]),
        )
        above = functional.pad(batch["clicks"], (1, 0))[:, :-1, None]
        first = functional.pad(query, (0, 1 + documents.shape[2]))
        later = torch.cat([functional.pad(above, (query.shape[2], 0)), documents], 2)
        return self.output(self.recurrent(torch.cat([first, later], 1))[0][:, 1:])[..., 0]

    def loss(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return functional.binary_cross_entropy_with_logits(self(batch), batch["clicks"])


class CACMMinus(nn.Module):
    """Attraction of a table, times the examination of a GRU over positions and the clicks above."""

    def __init__(self, sizes: dict[str, int], hidden: int, vectors: int, sparse: bool):
        super().__init__()
        self.attraction = nn.Embedding(sizes["query_doc_ids"] + 1, 1, sparse=sparse)
        self.positions = nn.Embedding(sizes["positions"] + 1, vectors)
        self.clicks = nn.Embedding(2, vectors)
        self.recurrent = nn.GRU(2 * vectors, hidden, batch_first=True)
        self.output = nn.Linear(hidden, 1)

    def loss(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        above = functional.pad(batch["clicks"], (1, 0))[:, :-1].long()
        read = torch.cat([self.positions(batch["positions"]), self.clicks(above)], 2)
        examination = self.output(self.recurrent(read)[0])[..., 0]
        attraction = self.attraction(batch["query_doc_ids"])[..., 0]
        click = (torch.sigmoid(examination) * torch.sigmoid(attraction)).clamp(1e-7, 1 - 1e-7)
        return functional.binary_cross_entropy(click, batch["clicks"])


MODELS = {"ncm": (NCM, 64), "cacm_minus": (CACMMinus, 4)}
TABLES = ("documents", "queries", "attraction")


def main() -> None:
    settings = json.loads(sys.argv[2])
    torch.set_num_threads(settings["threads"])
    torch.manual_seed(0)
    columns = {name: torch.from_numpy(values) for name, values in np.load(sys.argv[1]).items()}
    sizes = {name: int(values.max()) for name, values in columns.items()}
    batches = [
        {name: values[step] for name, values in columns.items()}
        for step in range(len(columns["clicks"]))
    ]
    kind, vectors = MODELS[settings["model"]]
    sparse = settings["rows"] == "sparse"
    model = kind(sizes, 64, vectors, sparse)
    tables = [each.weight for name, each in model.named_children() if sparse and name in TABLES]
    others = [each for each in model.parameters() if not any(each is table for table in tables)]
    optimizers = [torch.optim.Adam(others, lr=LEARNING_RATE)]
    if tables:
        optimizers.append(torch.optim.SparseAdam(tables, lr=LEARNING_RATE))

    def run() -> None:
        for batch in batches:
            loss = model.loss(batch)
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()

    run()  # room for the optimizer's state
    start = time.process_time(), time.perf_counter()
    run()
    cpu, wall = time.process_time() - start[0], time.perf_counter() - start[1]
    sessions = columns["clicks"].shape[0] * columns["clicks"].shape[1]
    print(json.dumps({"cpu": cpu / sessions, "wall": wall / sessions}))


if __name__ == "__main__":
    main()
