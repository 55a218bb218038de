#!/usr/bin/env bash
# Sets up clickexp on a machine with Python 3.11 or later and runs its tests, in a process more than there are cores.
#   bash scripts/test.sh
#   bash scripts/test.sh -m "not slow" -k models
#   PYTHON=python3.13 VENV=.venv-3.13 bash scripts/test.sh     with the versions of scripts/constraints-py312.txt
set -euo pipefail
EXTRAS="test ${EXTRAS:-}"
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
bash "$root/scripts/install_tools.sh"
cd "$root"
# what only some tests need; they skip with the reason where it cannot be installed
if ! python -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("ray") is None)'; then
    python -m pip install --quiet --disable-pip-version-check --constraint "$constraints" ray ||
        echo "test.sh: Ray cannot be installed; the tests of launcher=ray skip" >&2
fi
bash scripts/slurm.sh install || echo "test.sh: the tests of launcher=slurm skip" >&2
# some tests wait for others' work, hence one more
processes=$(($(getconf _NPROCESSORS_ONLN) + 1))
exec python -m pytest --numprocesses="$processes" --maxprocesses=8 --max-worker-restart=0 \
    --dist=loadfile --no-loadscope-reorder "$@"
