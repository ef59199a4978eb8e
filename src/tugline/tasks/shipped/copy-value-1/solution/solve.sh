#!/bin/sh
set -e
cd "${APP_DIR:-/app}"
sed -n 's/^depth=//p' scanner.cfg > letter.md
