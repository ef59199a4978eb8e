#!/bin/sh
set -e
cd "${APP_DIR:-/app}"
sed -i 's/^shift=.*/shift=comet/' network.cfg
