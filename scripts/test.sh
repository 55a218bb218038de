#!/usr/bin/env bash
# Sets up clickexp on a machine with Python 3.11 and runs its tests.
#   bash scripts/test.sh
#   bash scripts/test.sh -m "not slow" -k models
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
cd "$root"
exec python -m pytest "$@"
