#!/bin/sh
set -e
cd "${APP_DIR:-/app}"
echo 'pepper falcon' >> archive.txt
