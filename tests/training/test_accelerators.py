"""Warnings about software of accelerators, as if this machine had one."""

import types
import warnings

import jax
import pytest
from flax import nnx
from refusals import refuses
from small_logs import packed, ragged_log

from clickexp.errors import ConfigError
from clickexp.models import DocumentCTRModel
from clickexp.training import CountingTrainer, Trainer, accelerators

LOG = packed(ragged_log(32, 3, 20), 20)
CUDA, ROCM, CPU = ("gpu", "cuda 12090"), ("gpu", "rocm 60000"), ("cpu", "cpu")
PRECISION = "jax_default_matmul_precision"


SLOW = [
    ("0.10.2", CUDA, True),
    ("0.11.0", CUDA, True),
    ("0.10.1", CUDA, False),
    ("0.9.2", CUDA, False),
    ("0.11.2", CUDA, False),
    ("0.12.0.1", CUDA, False),
    ("0.10.2", ROCM, False),
    ("0.10.2", CPU, False),
]


def test_the_versions_that_scatter_slowly_are_those_of_cuda(monkeypatch):
    for version, backend, slow in SLOW:
        client = types.SimpleNamespace(platform_version=backend[1])
        devices = [types.SimpleNamespace(client=client)]
        monkeypatch.setattr(accelerators, "version", {"jaxlib": version}.get)
        monkeypatch.setattr(jax, "default_backend", lambda: backend[0])
        monkeypatch.setattr(jax, "devices", lambda: devices)
        assert (accelerators.slow_scatter() is not None) == slow, (version, backend)


@pytest.mark.parametrize(
    ("backend", "chosen", "kept"),
    [("gpu", None, "float32"), ("gpu", "tensorfloat32", "tensorfloat32"), ("cpu", None, None)],
)
def test_accelerators_multiply_in_float32_unless_told(backend, chosen, kept, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    jax.config.update(PRECISION, chosen)
    try:
        accelerators.keep_precision()
        assert jax.config.values[PRECISION] == kept
    finally:
        jax.config.update(PRECISION, None)


def test_a_training_warns_once_and_names_the_remedy(monkeypatch):
    """Before anything else: here there are no sessions."""
    monkeypatch.setattr(accelerators, "version", {"jaxlib": "0.10.2"}.get)
    monkeypatch.setattr(accelerators, "is_cuda", lambda: True)
    for trainer in (Trainer(epochs=1, batch_size=16), CountingTrainer()):
        accelerators.warn_of_faults.cache_clear()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2):
                with refuses(ConfigError, "no training sessions"):
                    trainer.train(DocumentCTRModel(20, rngs=nnx.Rngs(0)), LOG.slice(0, 0), LOG)
        (warning,) = [one for one in caught if "jaxlib" in str(one.message)]
        assert "0.10.2" in str(warning.message) and "jax 0.11.2" in str(warning.message)
        assert "Python 3.12 or later" in str(warning.message)
    accelerators.warn_of_faults.cache_clear()
