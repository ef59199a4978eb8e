#!/bin/sh
set -e
cd "${APP_DIR:-/app}"
grep -c '' journal.dat > draft.md
