#!/bin/sh
set -e
cd "${APP_DIR:-/app}"
sed -i 's/^size=.*/size=harbor/' logger.cfg
