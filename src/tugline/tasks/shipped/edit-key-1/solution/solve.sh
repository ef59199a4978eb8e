#!/bin/sh
set -e
cd "${APP_DIR:-/app}"
sed -i 's/^target=.*/target=river/' account.cfg
