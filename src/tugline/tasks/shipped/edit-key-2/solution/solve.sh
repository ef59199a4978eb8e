#!/bin/sh
set -e
cd "${APP_DIR:-/app}"
sed -i 's/^height=.*/height=turtle/' logger.cfg
