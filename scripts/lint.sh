#!/usr/bin/env bash
# The static checks: sets up the environment of the tests, then reads all Python files.
#   bash scripts/lint.sh
set -euo pipefail
EXTRAS="test ${EXTRAS:-}"
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
cd "$root"
ruff check .
