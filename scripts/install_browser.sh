#!/usr/bin/env bash
# Installs Chromium, in which the tests open the page of clickexp-compare. Where it cannot (no Debian, no root, no
# network), it says so and succeeds: those tests are skipped then.
#   bash scripts/install_browser.sh
set -uo pipefail
command -v chromium >/dev/null && exit 0
tell() { echo "no Chromium, so that tests of the comparison page are skipped: $1" >&2; exit 0; }
command -v apt-get >/dev/null || tell "there is no apt-get"
[ "$(id -u)" = 0 ] || tell "installing needs root (sudo bash scripts/install_browser.sh)"
echo "installing Chromium (once) ..."
log="$(mktemp)"
{ apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium fonts-dejavu-core; } >"$log" 2>&1 ||
    tell "apt-get failed: $(tail -n 1 "$log")"
