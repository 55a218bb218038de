#!/usr/bin/env bash
# Builds the site of docs/ strictly into outputs/site; open outputs/site/index.html, no server needed.
#   bash scripts/docs.sh
#   bash scripts/docs.sh serve        shows it at localhost and rebuilds what changes
set -euo pipefail
EXTRAS="docs ${EXTRAS:-}"
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
cd "$root"
export NO_MKDOCS_2_WARNING=1
case "${1:-}" in
serve) exec mkdocs serve ;;
"") mkdocs build --strict && echo "built outputs/site/index.html" ;;
*) mkdocs build --strict --quiet --site-dir "$1" && echo "built $1/index.html" ;;
esac
