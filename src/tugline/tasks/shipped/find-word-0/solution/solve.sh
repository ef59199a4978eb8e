#!/bin/sh
set -e
cd "${APP_DIR:-/app}"
found=$(grep -l "thunder" *)
printf "%s\n" "$found" > recipe.md
