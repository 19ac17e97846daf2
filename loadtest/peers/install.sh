#!/bin/sh
# Installs the pinned peers beside this script: real MCP servers and clients, and the Node that runs them.
# Does nothing where the pins have not changed. Several at once take turns.
set -eu
cd "$(dirname "$0")"

need() { # need PROGRAM PACKAGE
    command -v "$1" > /dev/null || { echo "$1 is missing: apt-get install -y $2" >&2; exit 69; }
}
need npm npm
need python3 python3-venv
need git git
need flock util-linux

exec 9> .lock
flock 9

if ! cmp -s package-lock.json node_modules/.installed-lock; then
    # Without scripts: the only one there is (the Inspector's) does nothing in an installed package.
    npm ci --ignore-scripts --no-audit --no-fund --loglevel=error >&2
    # The same descriptions with every reference written out: nobody reads them.
    rm -f node_modules/@octokit/openapi/generated/*.deref.json
    cp package-lock.json node_modules/.installed-lock
fi

if ! cat requirements.txt constraints.txt | cmp -s - venv/.installed-pins; then
    rm -rf venv
    python3 -m venv venv || { echo "no venv: apt-get install -y python3-venv" >&2; exit 69; }
    venv/bin/pip install --quiet --disable-pip-version-check -r requirements.txt >&2
    venv/bin/pip check >&2
    cat requirements.txt constraints.txt > venv/.installed-pins
fi

test "$(node_modules/node/bin/node --version)" = v22.23.3
