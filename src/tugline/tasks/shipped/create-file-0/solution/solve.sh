#!/bin/sh
set -e
cd "${APP_DIR:-/app}"
echo 'mango cedar' > record.md
