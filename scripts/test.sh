#!/usr/bin/env bash
# Sets up clickexp on a machine with Python 3.11 or later and runs its tests.
#   bash scripts/test.sh                 what each change needs
#   bash scripts/test.sh --all           with the nightly tier
#   bash scripts/test.sh tests/models -k mixture
#   PYTHON=python3.13 VENV=.venv-3.13 bash scripts/test.sh     with the versions of scripts/constraints-py312.txt
set -euo pipefail
EXTRAS="test ${EXTRAS:-}"
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
bash "$root/scripts/install_tools.sh"
cd "$root"
unset PYTHONDONTWRITEBYTECODE # what pytest makes of each file is kept for the next run
# what only some tests need; they skip with the reason where it cannot be installed
if ! python -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("ray") is None)'; then
    python -m pip install --quiet --disable-pip-version-check --constraint "$constraints" ray ||
        echo "test.sh: Ray cannot be installed; the tests of launcher=ray skip" >&2
fi
bash scripts/slurm.sh install || echo "test.sh: the tests of launcher=slurm skip" >&2
# some tests wait for others' work, hence one more
processes=$(($(getconf _NPROCESSORS_ONLN) + 1))
TIMEFORMAT="%0lR of wall time, %0lU + %0lS of processor time"
time python -m pytest --numprocesses="$processes" --maxprocesses=8 --max-worker-restart=0 \
    --dist=loadfile --no-loadscope-reorder "$@"
