"""Runs an experiment on several devices that XLA makes of the CPU, and prints the most rows of a table on one of them.

python tests/experiment/over_devices.py DEVICES ROWS OVERRIDES...  # of clickexp, for tables of so many rows
"""

import os
import sys

os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={int(sys.argv[1]) + 1}"

from held_rows import most_rows

import clickexp

overrides = [f"trainer.devices={sys.argv[1]}", *sys.argv[3:]]
print(most_rows(lambda: clickexp.run(*overrides), int(sys.argv[2])))
