#!/bin/sh
set -e
cd "${APP_DIR:-/app}"
echo 'lemon velvet' >> chart.log
