#!/bin/sh
# Make sure a Chromium is there for the browser tests: Debian's package as root, otherwise Playwright's own.
set -e
bin=$1
if command -v chromium >/dev/null 2>&1 || command -v chromium-browser >/dev/null 2>&1; then
    exit 0
fi
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    apt-get update -q
    DEBIAN_FRONTEND=noninteractive apt-get install -yq --no-install-recommends chromium
else
    "$bin/python" -m playwright install chromium
fi
