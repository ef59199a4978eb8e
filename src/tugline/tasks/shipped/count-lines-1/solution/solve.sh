#!/bin/sh
set -e
cd "${APP_DIR:-/app}"
grep -c '' draft.md > chart.txt
