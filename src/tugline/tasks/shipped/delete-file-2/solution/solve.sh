#!/bin/sh
set -e
cd "${APP_DIR:-/app}"
rm folder.txt
