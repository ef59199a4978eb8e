#!/bin/sh
set -e
cd "${APP_DIR:-/app}"
echo 'badger tulip' > profile.log
