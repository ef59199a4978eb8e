#!/bin/sh
set -e
cd "${APP_DIR:-/app}"
found=$(grep -l "forest" *)
printf "%s\n" "$found" > outline.txt
