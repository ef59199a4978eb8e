#!/bin/sh
set -e
cd "${APP_DIR:-/app}"
found=$(grep -l "velvet" *)
printf "%s\n" "$found" > poem.txt
