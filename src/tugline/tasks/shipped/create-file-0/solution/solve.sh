#!/bin/sh
set -e
cd "${APP_DIR:-/app}"
echo 'piston lantern' > record.md
