"""Warnings about software of accelerators, as if this machine had one."""

import types
import warnings

import jax
import pytest
from flax import nnx
from small_logs import packed, ragged_log

from clickexp.models import DocumentCTRModel
from clickexp.training import CountingTrainer, Trainer, accelerators

LOG = packed(ragged_log(32, 3, 20), 20)
CUDA, ROCM, CPU = ("gpu", "cuda 12090"), ("gpu", "rocm 60000"), ("cpu", "cpu")


@pytest.mark.parametrize(
    "version, backend, slow",
    [
        ("0.10.2", CUDA, True),
        ("0.11.0", CUDA, True),
        ("0.10.1", CUDA, False),
        ("0.9.2", CUDA, False),
        ("0.11.2", CUDA, False),
        ("0.12.0.1", CUDA, False),
        ("0.10.2", ROCM, False),
        ("0.10.2", CPU, False),
    ],
)
def test_the_versions_that_scatter_slowly_are_those_of_cuda(monkeypatch, version, backend, slow):
    client = types.SimpleNamespace(platform_version=backend[1])
    monkeypatch.setattr(accelerators, "version", {"jaxlib": version}.get)
    monkeypatch.setattr(jax, "default_backend", lambda: backend[0])
    monkeypatch.setattr(jax, "devices", lambda: [types.SimpleNamespace(client=client)])
    assert (accelerators.slow_scatter() is not None) == slow


@pytest.mark.parametrize("new_trainer", [lambda: Trainer(epochs=1, batch_size=16), CountingTrainer])
def test_a_training_warns_once_and_names_the_remedy(monkeypatch, new_trainer):
    monkeypatch.setattr(accelerators, "version", {"jaxlib": "0.10.2"}.get)
    monkeypatch.setattr(accelerators, "is_cuda", lambda: True)
    accelerators.warn_of_faults.cache_clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            new_trainer().train(DocumentCTRModel(20, rngs=nnx.Rngs(0)), LOG, LOG)
    (warning,) = [one for one in caught if "jaxlib" in str(one.message)]
    assert "0.10.2" in str(warning.message) and "Python 3.12 or later with jax 0.11.2" in str(warning.message)
