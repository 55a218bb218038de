#!/usr/bin/env bash
# Sets up clickexp on a machine with Python 3.11 or later and runs it: the default experiment, or what the arguments say.
#   bash scripts/run.sh
#   bash scripts/run.sh model=dbn seed=1
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
exec clickexp "$@"
