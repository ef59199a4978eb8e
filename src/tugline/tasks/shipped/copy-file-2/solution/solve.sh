#!/bin/sh
set -e
cd "${APP_DIR:-/app}"
cp guide.md draft.log
