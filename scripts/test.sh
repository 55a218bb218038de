#!/usr/bin/env bash
# Sets up clickexp on a machine with Python 3.11 and runs its tests, each file in one of up to 8 processes.
#   bash scripts/test.sh
#   bash scripts/test.sh -m "not slow" -k models
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
bash "$root/scripts/install_browser.sh"
cd "$root"
exec python -m pytest --numprocesses=logical --maxprocesses=8 --dist=loadfile "$@"
