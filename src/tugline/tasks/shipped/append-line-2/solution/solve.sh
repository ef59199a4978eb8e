#!/bin/sh
set -e
cd "${APP_DIR:-/app}"
echo 'honey silver' >> index.log
