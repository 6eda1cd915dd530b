#!/bin/sh
# Installs Cove from this directory (an unpacked archive), or removes it again.
#
#   ./install.sh              install or upgrade; sandboxes run on through an upgrade
#   ./install.sh --uninstall  remove the program and its settings' example; data and settings stay
#   ./install.sh --purge      remove everything: sandboxes, snapshots, images, keys, settings, the user
set -eu
prefix=/usr/local
cd "$(dirname "$0")"
fail() { echo "install.sh: $1" >&2; exit 1; }
[ "$(id -u)" -eq 0 ] || fail "must run as root; try: sudo ./install.sh $*"
# What a person needs next. The server writes its address when it is ready.
show_next() {
  echo "  address   $(cat /var/lib/cove/url 2>/dev/null || echo http://127.0.0.1:7070)"
  echo "  key       /var/lib/cove/root.key"
  echo "  next      cove run debian -- echo hello"
}
has_systemd() { [ -d /run/systemd/system ]; }

install_all() {
  missing=
  for program in mkfs.btrfs mmdebstrap tar zstd; do
    command -v "$program" >/dev/null || missing="$missing $program"
  done
  if [ -n "$missing" ]; then
    echo "install.sh: not found:$missing" >&2
    fail "install them first; on Debian and Ubuntu: apt-get install btrfs-progs mmdebstrap debian-archive-keyring ca-certificates zstd"
  fi
  getent passwd cove >/dev/null || useradd --system --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin cove
  # A program that runs cannot be overwritten; renaming over it leaves the running one alone.
  install -D -m 755 bin/cove "$prefix/bin/cove.new"
  mv "$prefix/bin/cove.new" "$prefix/bin/cove"
  mkdir -p "$prefix/share/man/man1"
  install -m 644 share/man/man1/*.1 "$prefix/share/man/man1/"
  install -D -m 644 share/completions/cove.bash "$prefix/share/bash-completion/completions/cove"
  install -D -m 644 share/completions/_cove "$prefix/share/zsh/site-functions/_cove"
  install -D -m 644 share/completions/cove.fish "$prefix/share/fish/vendor_completions.d/cove.fish"
  if [ -d lib/criu ]; then
    mkdir -p "$prefix/lib/cove"
    rm -rf "$prefix/lib/cove/criu.new"
    cp -a lib/criu "$prefix/lib/cove/criu.new"
    rm -rf "$prefix/lib/cove/criu"
    mv "$prefix/lib/cove/criu.new" "$prefix/lib/cove/criu"
  fi
  [ -e /etc/cove/cove.toml ] || install -D -m 644 etc/cove.toml /etc/cove/cove.toml
  if [ -d /etc/systemd/system ]; then
    install -m 644 cove.service /etc/systemd/system/cove.service
  fi
  if has_systemd; then
    systemctl daemon-reload
    systemctl enable cove.service
    systemctl restart cove.service
    echo "installed; the server is running"
  else
    echo "installed; this machine does not run systemd, so start the server yourself: cove serve"
  fi
  show_next
}

remove_program() {
  if has_systemd && [ -e /etc/systemd/system/cove.service ]; then systemctl disable --now cove.service || true; fi
  # With the program goes the only way to end the sandboxes. It knows where the data is.
  if [ -x "$prefix/bin/cove" ]; then
    "$prefix/bin/cove" destroy --if-any "$1"
  fi
  rm -f "$prefix/bin/cove" "$prefix"/share/man/man1/cove.1 "$prefix"/share/man/man1/cove-*.1
  rm -f "$prefix/share/bash-completion/completions/cove" "$prefix/share/zsh/site-functions/_cove" "$prefix/share/fish/vendor_completions.d/cove.fish"
  rm -rf "$prefix/lib/cove/criu"
  rmdir "$prefix/lib/cove" 2>/dev/null || true
  rm -f /etc/systemd/system/cove.service
  if has_systemd; then systemctl daemon-reload; fi
}

case "${1:-}" in
  '') install_all ;;
  --uninstall)
    remove_program --keep-data
    echo "removed; data and settings in /etc/cove are kept"
    ;;
  --purge)
    remove_program --yes
    rm -rf --one-file-system /var/cache/cove /run/cove /etc/cove
    if getent passwd cove >/dev/null; then userdel cove; fi
    echo "removed, data and settings too"
    ;;
  *) sed -n '2,6p' "$0" >&2; exit 2 ;;
esac
