#!/bin/sh
set -e
cd "${APP_DIR:-/app}"
sed -i 's/^retries=.*/retries=17/' network.cfg
