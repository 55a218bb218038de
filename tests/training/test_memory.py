"""Peaks of memory: of the process, as psutil sees it, and of an accelerator that reports one."""

from types import SimpleNamespace

import psutil
import pytest

from clickexp.training import memory


@pytest.mark.parametrize(
    "reported, peaks", [(None, {}), ({"peak_bytes_in_use": 3 << 20}, {"peak_device_mib": 3.0})]
)
def test_peaks(monkeypatch, reported, peaks):
    device = SimpleNamespace(memory_stats=lambda: reported)
    monkeypatch.setattr(memory.jax, "devices", lambda: [device])
    found = memory.peak_memory()
    now = psutil.Process().memory_info().rss / 2**20
    assert 0.9 * now < found.pop("peak_host_mib") < psutil.virtual_memory().total / 2**20
    assert found == peaks
