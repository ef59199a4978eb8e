#!/bin/sh
set -e
cd "${APP_DIR:-/app}"
found=$(grep -l "cinnamon" *)
printf "%s\n" "$found" > recipe.md
