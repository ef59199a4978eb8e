#!/bin/sh
set -e
cd "${APP_DIR:-/app}"
sed -n 's/^limit=//p' printer.cfg > bulletin.log
