#!/bin/sh
set -e
cd "${APP_DIR:-/app}"
rm report.dat
