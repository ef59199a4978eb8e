#!/bin/sh
set -e
cd "${APP_DIR:-/app}"
echo 'island marble' > roster.md
