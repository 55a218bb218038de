"""Simulated logs in the layouts of the published ones, with which every experiment runs end to end.

    python scripts/make_miniature.py                                 into outputs/miniature
    python scripts/make_miniature.py data/small --yandex 2000 --baidu 500 --uva 200 --features 16

Writes four sources: `yandex/` (raw text of the WSCD 2012 challenge, with its relevance file), `yandex_clax/`,
`baidu_ultr/` and `baidu_ultr_uva/` (parquet, as CLAX publishes them). The two of Yandex hold the same pages.

What is as published: ten documents a page of Yandex and 4.2 impressions a query-document pair with a long tail; click
rates that fall over ranks; ids of Baidu hashed to 31 bits, on lists of different lengths, some beyond 22 documents;
768 features a document and lists with five grades of relevance. What is not: the users, who follow a dynamic Bayesian
network, or a user browsing model with --user ubm; how attractive documents are; a search engine that shows a document
at nearly the same rank every time; and features, which are projections of the true logits among other things.
"""

import argparse
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from clickexp.data.id_table import IdTable
from clickexp.models import ClickModel, DynamicBayesianNetwork, UserBrowsingModel
from clickexp.simulation.simulated import GroundTruth, zipf
from clickexp.simulation.towers import Behavior

USERS = {"dbn": DynamicBayesianNetwork, "ubm": UserBrowsingModel}
EXAMINATION = (2.0, 1.2)
CONTINUATION = 4.0
ATTRACTION = (-3.2, 2.0)
POLICY_NOISE = 0.2
POSITIONS = 10
LONGEST = 25
CANDIDATES = 20
PAGES_PER_QUERY = 2.35
"""Pages of Yandex over its queries: what makes 4.2 impressions a pair."""
ZIPF = 0.9
FILES = 3
LATENT = 16

Log = dict[str, np.ndarray]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?", default=Path("outputs/miniature"))
    parser.add_argument("--user", choices=USERS, default="dbn", help="the click model that clicks")
    parser.add_argument("--yandex", type=int, default=240_000, help="result pages")
    parser.add_argument("--baidu", type=int, default=60_000, help="sessions with ids")
    parser.add_argument("--uva", type=int, default=4_000, help="sessions with features")
    parser.add_argument("--features", type=int, default=768, help="numbers a document")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.folder.exists():
        parser.error(f"{given.folder} exists already: delete it, or name another folder")
    write(**vars(given))
    print(f"wrote {given.folder}")


def write(
    folder: Path, user: str, yandex: int, baidu: int, uva: int, features: int, seed: int
) -> None:
    """All four sources into a new folder."""
    new_user, rng = USERS[user], np.random.default_rng(seed)
    write_yandex(folder, *pages_of_ten(yandex, new_user, rng), rng)
    write_baidu(folder / "baidu_ultr", ragged(baidu, new_user, rng)[0])
    write_uva(folder / "baidu_ultr_uva", *ragged(uva, new_user, rng, POSITIONS), features, rng)


def pages_of_ten(
    pages: int, new_user: type[ClickModel], rng: np.random.Generator
) -> tuple[Log, GroundTruth]:
    """Pages of ten out of the candidates of a query."""
    queries = max(round(pages / PAGES_PER_QUERY), 2)
    truth = GroundTruth.draw(queries, CANDIDATES, *ATTRACTION, rng)
    return browsed(truth, new_user, pages, POSITIONS, rng), truth


def ragged(
    sessions: int, new_user: type[ClickModel], rng: np.random.Generator, longest: int = LONGEST
) -> tuple[Log, GroundTruth]:
    """Lists of all candidates of a query: mostly ten, some fewer, some up to `longest`."""
    queries = max(round(sessions / PAGES_PER_QUERY), 2)
    counts = np.minimum(rng.choice([5, 8, 10, 10, 10, 10, 10, 14, 22, LONGEST], queries), longest)
    truth = GroundTruth.draw(int(counts.sum()), 1, *ATTRACTION, rng)
    starts = 1 + np.concatenate([[0], np.cumsum(counts)])
    truth = dataclasses.replace(truth, starts=starts)
    return browsed(truth, new_user, sessions, longest, rng), truth


def browsed(
    truth: GroundTruth,
    new_user: type[ClickModel],
    sessions: int,
    positions: int,
    rng: np.random.Generator,
) -> Log:
    """The columns of so many sessions."""
    user = truth.user(new_user, positions, Behavior(*EXAMINATION, CONTINUATION))
    queries = np.arange(len(truth.starts) - 1)
    popularity, seed = zipf(len(queries), ZIPF), int(rng.integers(1 << 31))
    chunks = list(
        truth.browse(user, queries, popularity, POLICY_NOISE, positions, sessions, seed, rng)
    )
    return {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}


def shown(log: Log) -> np.ndarray:
    """[sessions, ranks] where there is a document."""
    return np.arange(log["clicks"].shape[1]) < log["lengths"][:, None]


def write_yandex(folder: Path, log: Log, truth: GroundTruth, rng: np.random.Generator) -> None:
    """The raw text, labels of the documents shown, and the parquet files of the same pages."""
    (folder / "yandex").mkdir(parents=True)
    with open(folder / "yandex" / "YandexClicks.txt", "w") as file:
        file.writelines(f"{line}\n" for line in yandex_lines(log, rng))
    pairs, first = np.unique(log["query_doc_ids"], return_index=True)
    queries = np.repeat(log["query_ids"], POSITIONS)[first]
    labels = (truth.labels[pairs] >= 2).astype(int)  # the challenge has two grades
    judged = rng.random(len(queries)) < 0.1
    rows = zip(queries[judged], pairs[judged], labels[judged], strict=True)
    with open(folder / "yandex" / "YandexRelevance.txt", "w") as file:
        file.writelines(f"{query}\t0\t{url}\t{label}\n" for query, url, label in rows)
    ids = IdTable().ids(log["query_doc_ids"].astype(np.uint64))
    write_lists(folder / "yandex_clax", {**log, "query_doc_ids": ids}, with_query=True)


def yandex_lines(log: Log, rng: np.random.Generator) -> Iterator[str]:
    """Lines of sessions of one to three pages; the clicks of a page follow it."""
    session, left, time = -1, 0, 0
    for query, urls, clicks in zip(
        log["query_ids"], log["query_doc_ids"], log["clicks"], strict=True
    ):
        if not left:
            session, left, time = session + 1, int(rng.integers(1, 4)), 0
        left -= 1
        yield "\t".join(map(str, (session, time, "Q", query, 0, *urls)))
        for url in urls[clicks]:
            time += int(rng.integers(5, 60))
            yield f"{session}\t{time}\tC\t{url}"
        time += int(rng.integers(5, 60))


def write_baidu(folder: Path, log: Log) -> None:
    """Ids scattered over 31 bits by a multiplication modulo 2^31, which no two ids share."""
    ids = (log["query_doc_ids"].astype(np.int64) * 1_103_515_245 + 12_345) % (1 << 31)
    write_lists(folder, {**log, "query_doc_ids": np.where(shown(log), ids, 0)})


def write_lists(folder: Path, log: Log, with_query: bool = False) -> None:
    """Parquet files of one row a session."""
    folder.mkdir(parents=True)
    for number, rows in enumerate(np.array_split(np.arange(len(log["lengths"])), FILES)):
        part = {name: values[rows] for name, values in log.items()}
        columns = {
            name: as_lists(part, part[name][shown(part)]) for name in ("query_doc_ids", "clicks")
        }
        if with_query:
            columns = {"query_id": pa.array(part["query_ids"]), **columns}
        pq.write_table(pa.table(columns), folder / f"part-{number}.parquet")


def write_uva(
    folder: Path, log: Log, truth: GroundTruth, features: int, rng: np.random.Generator
) -> None:
    """Parquet files of one row a session with a vector a document, and annotated lists of other queries."""
    folder.mkdir(parents=True)
    vectors = features_of(truth, features, rng)
    log = log | {
        "positions": np.broadcast_to(np.arange(1, log["clicks"].shape[1] + 1), log["clicks"].shape)
    }
    for number, rows in enumerate(np.array_split(np.arange(len(log["lengths"])), FILES)):
        part = {name: values[rows] for name, values in log.items()}
        flat = {name: part[name][shown(part)] for name in ("query_doc_ids", "positions", "clicks")}
        columns = {
            "query_doc_features": as_lists(part, as_vectors(vectors[flat.pop("query_doc_ids")]))
        }
        columns |= {name: as_lists(part, values) for name, values in flat.items()}
        pq.write_table(
            pa.table(columns), folder / f"part-0_split-{number}.parquet", compression="zstd"
        )
    lists = np.arange(len(truth.labels) // (5 * CANDIDATES) or 1)
    judged = {"lengths": np.full(len(lists), CANDIDATES)}
    documents = 1 + rng.choice(len(truth.labels) - 1, len(lists) * CANDIDATES)
    columns = {
        "query_doc_features": as_lists(judged, as_vectors(vectors[documents])),
        "labels": as_lists(judged, truth.labels[documents].astype(np.int64)),
    }
    pq.write_table(pa.table(columns), folder / "annotations.parquet", compression="zstd")


def features_of(truth: GroundTruth, features: int, rng: np.random.Generator) -> np.ndarray:
    """[documents, features] in half precision: a random projection of the true logits and of what means nothing."""
    latent = rng.standard_normal((len(truth.labels), LATENT)).astype(np.float32)
    for column, logits in enumerate((truth.attraction, truth.satisfaction)):
        latent[:, column] = (logits - logits.mean()) / logits.std()
    projection = rng.standard_normal((LATENT, features)).astype(np.float32) / LATENT**0.5
    return (latent @ projection).astype(np.float16)


def as_vectors(values: np.ndarray) -> pa.Array:
    """Lists of single-precision numbers."""
    offsets = np.arange(len(values) + 1, dtype=np.int32) * values.shape[1]
    return pa.ListArray.from_arrays(offsets, pa.array(values.astype(np.float32).ravel()))


def as_lists(log: Log, values: np.ndarray | pa.Array) -> pa.Array:
    offsets = np.concatenate([[0], np.cumsum(log["lengths"])]).astype(np.int32)
    return pa.ListArray.from_arrays(
        offsets, values if isinstance(values, pa.Array) else pa.array(values)
    )


if __name__ == "__main__":
    main()
