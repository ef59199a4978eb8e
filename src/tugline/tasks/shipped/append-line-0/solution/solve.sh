#!/bin/sh
set -e
cd "${APP_DIR:-/app}"
echo 'willow glacier' >> chart.log
