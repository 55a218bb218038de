#!/usr/bin/env bash
# The static checks: sets up the environment of the tests, then checks style, types and docstrings.
#   bash scripts/lint.sh
set -euo pipefail
EXTRAS="test lint ${EXTRAS:-}"
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
cd "$root"
ruff format --check --quiet .
ruff check .
basedpyright
interrogate clickexp
