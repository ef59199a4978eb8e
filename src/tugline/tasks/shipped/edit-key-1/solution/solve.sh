#!/bin/sh
set -e
cd "${APP_DIR:-/app}"
sed -i 's/^theme=.*/theme=23/' storage.cfg
