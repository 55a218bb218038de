#!/usr/bin/env bash
# Installs what some tests open their output with: Chromium for pages, TeX for tables. Where it cannot (no Debian, no
# root, no network), it says so and succeeds: those tests are skipped then.
#   bash scripts/install_tools.sh
set -uo pipefail

missing=""
command -v chromium >/dev/null || missing="chromium fonts-dejavu-core"
# booktabs is in texlive-latex-recommended
command -v pdflatex >/dev/null || missing="$missing texlive-latex-base texlive-latex-recommended"
[ -n "$missing" ] || exit 0
tell() { echo "no ${missing// /, }, so that tests of pages or LaTeX tables are skipped: $1" >&2; exit 0; }
command -v apt-get >/dev/null || tell "there is no apt-get"
[ "$(id -u)" = 0 ] || tell "installing needs root (sudo bash scripts/install_tools.sh)"
echo "installing ${missing// /, } (once) ..."
log="$(mktemp)"
# shellcheck disable=SC2086  # a list of packages
{ apt-get update -qq && apt-get install -qq -y --no-install-recommends $missing; } >"$log" 2>&1 ||
    tell "apt-get failed: $(tail -n 1 "$log")"
