#!/bin/sh
set -e
cd "${APP_DIR:-/app}"
echo 'tulip marble' > profile.log
