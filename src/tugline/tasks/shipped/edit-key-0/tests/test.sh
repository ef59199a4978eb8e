#!/bin/sh
# Writes 1 or 0 to the reward file. APP_DIR and LOGS_DIR move the two directories when no container is in use.
cd "${APP_DIR:-/app}" || exit 1
logs=${LOGS_DIR:-/logs/verifier}
mkdir -p "$logs"
reward=1

# holds FILE TEXT: FILE is a regular file with exactly TEXT; newlines at its end do not count.
holds() {
    if [ ! -f "$1" ] || [ "$(cat "$1")" != "$2" ]; then
        echo "wrong: $1"
        reward=0
    fi
}

# gone FILE: nothing of that name is left.
gone() {
    if [ -e "$1" ] || [ -L "$1" ]; then
        echo "still there: $1"
        reward=0
    fi
}

holds network.cfg 'source=84
retries=17
timeout=harbor'

echo "$reward" > "$logs/reward.txt"
