"""Exports a run on several devices that XLA makes of the CPU; the last of them takes the part of the host.

python tests/export/over_devices.py DEVICES ARGUMENTS...  # of clickexp-export, for a run on so many devices

Each time that devices get the state of a model, no device of the mesh has all rows of a table.
"""

import os
import sys

os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={int(sys.argv[1]) + 1}"

import jax

from clickexp.cli.export import main
from clickexp.training.spread import SeveralDevices

HOST = jax.devices()[-1]
jax.local_devices = lambda backend: [HOST]
ROWS = 2_000
"""Of the tables of the run there are more; of all else there is less."""


lay_model = SeveralDevices.lay_model


def laid(devices, state):
    """The state, where it lies in parts."""
    found = lay_model(devices, state)
    shared = [array for array in jax.live_arrays() if array.devices() != {HOST}]
    whole = [array.shape for array in shared if array.is_fully_replicated]
    assert max(shape[0] for shape in whole if shape) < ROWS
    assert any(not array.is_fully_replicated for array in jax.tree.leaves(found))
    return found


SeveralDevices.lay_model = laid
main(sys.argv[2:])
