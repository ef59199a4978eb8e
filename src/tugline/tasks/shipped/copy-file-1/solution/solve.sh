#!/bin/sh
set -e
cd "${APP_DIR:-/app}"
cp profile.log index.dat
