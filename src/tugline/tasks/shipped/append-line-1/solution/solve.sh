#!/bin/sh
set -e
cd "${APP_DIR:-/app}"
echo 'coral planet' >> notes.md
