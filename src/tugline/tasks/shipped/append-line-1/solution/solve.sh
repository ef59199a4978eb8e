#!/bin/sh
set -e
cd "${APP_DIR:-/app}"
echo 'meadow crystal' >> recipe.md
