#!/bin/sh
set -e
cd "${APP_DIR:-/app}"
sed -n 's/^zone=//p' router.cfg > catalog.log
