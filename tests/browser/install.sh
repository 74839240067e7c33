#!/bin/sh
# Make sure a Chromium is there for the browser tests: Debian's package as root, otherwise Playwright's own,
# for which the folder of the environment's programs is the argument; without it, only the package is installed.
# The shell without windows is smaller and needs less time for a page than the whole browser.
set -e
bin=$1
for name in chromium-headless-shell chromium chromium-browser; do
    if command -v "$name" >/dev/null 2>&1; then
        exit 0
    fi
done
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -q
    apt-get install -yq --no-install-recommends chromium-headless-shell ||
        apt-get install -yq --no-install-recommends chromium
elif [ -n "$bin" ]; then
    "$bin/python" -m playwright install chromium
fi
