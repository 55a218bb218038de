"""Small logs, batches and tables for the tests of training."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from clickexp.data import Sessions
from clickexp.parameters import Rows, Table
from clickexp.training import EarlyStopping


class Last(EarlyStopping):
    """Keeps the state of every epoch, so that of the last."""

    def update(self, values):
        return True


def sigmoid(z):
    return 1 / (1 + np.exp(-np.asarray(z, np.float64)))


def ragged_log(sessions, ranks, pairs, seed=0, click_rate=0.3, full=False):
    """Columns of random sessions: lists of different lengths, a document often twice in a batch."""
    rng = np.random.default_rng(seed)
    lengths = np.full(sessions, ranks) if full else rng.integers(1, ranks + 1, sessions)
    shown = np.arange(ranks) < lengths[:, None]
    return dict(
        query_doc_ids=np.where(shown, rng.integers(1, pairs + 1, (sessions, ranks)), 0).astype(
            np.int32
        ),
        clicks=shown & (rng.random((sessions, ranks)) < click_rate),
        lengths=lengths.astype(np.int32),
    )


def packed(columns, pairs=None):
    return Sessions.from_arrays(**columns, query_doc_pairs=pairs)


def shown(columns):
    """The mask [sessions, ranks]."""
    return np.arange(columns["clicks"].shape[1]) < columns["lengths"][:, None]


def superbatch(columns, batch_size):
    """The columns as [steps, batch, ...], all batches full."""
    return {
        name: values.reshape(-1, batch_size, *values.shape[1:]) for name, values in columns.items()
    }


def fill_tables(model, seed=0):
    """Random numbers in place of zeros and of posteriors."""
    rng = np.random.default_rng(seed)
    for _, variable in nnx.iter_graph(model):
        if isinstance(variable, Table):
            rows = variable.get_value().point()
            variable.set_value(
                Rows(jnp.asarray(rng.normal(size=rows.values.shape), jnp.float32), rows.dim)
            )
    return model


def leaves(tree):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


def state_of(model):
    """Every array of a model, keys of random streams aside."""
    return leaves(nnx.state(model, (nnx.Param, Table)))


def session_log(lists=300, sessions=60, ranks=4, documents=9, seed=0, apart=False):
    """Columns of lists of search sessions, some of them the same as the one before."""
    rng = np.random.default_rng(seed)
    session = rng.integers(0, sessions, lists) * 10**12 - 5
    session = session if apart else np.sort(session)
    lengths = rng.integers(1, ranks + 1, lists).astype(np.int32)
    shown = np.arange(ranks) < lengths[:, None]
    ids = np.where(shown, rng.integers(1, documents + 1, (lists, ranks)), 0).astype(np.int32)
    again = np.flatnonzero(rng.random(lists - 1) < 0.3) + 1
    for at in again:  # some pages are shown twice
        ids[at], lengths[at] = ids[at - 1], lengths[at - 1]
    return {
        "query_doc_ids": ids,
        "lengths": lengths,
        "clicks": (rng.random(ids.shape) < 0.3) & (ids > 0),
        "query_ids": rng.integers(-3, 3, lists),
        "session_ids": session,
    }
