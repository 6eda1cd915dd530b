#!/bin/sh
# Turns a freshly installed Debian tree into the default image.
# Usage: customise.sh ROOT SOURCES-FILE [KEYRING...]
set -eu
root=$1
sources=$2
shift 2

# Packages come from where the host takes them.
rm -f "$root"/etc/apt/sources.list "$root"/etc/apt/sources.list.d/*
install -m 0644 "$sources" "$root/etc/apt/sources.list.d/debian.sources"
for keyring in "$@"; do
    if [ -f "$keyring" ] && [ ! -e "$root$keyring" ]; then
        install -D -m 0644 "$keyring" "$root$keyring"
    fi
done
rm -f "$root/etc/apt/apt.conf.d/99mmdebstrap"
cat > "$root/etc/apt/apt.conf.d/90lean" <<'EOF'
Acquire::Languages "none";
APT::Keep-Downloaded-Packages "false";
EOF

# What is left out here stays out when packages are added later.
rm -f "$root/etc/dpkg/dpkg.cfg.d/99mmdebstrap"
cat > "$root/etc/dpkg/dpkg.cfg.d/90lean" <<'EOF'
path-exclude=/usr/share/man/*
path-exclude=/usr/share/info/*
path-exclude=/usr/share/locale/*
path-exclude=/usr/share/doc/*
path-include=/usr/share/doc/*/copyright
EOF
find "$root/usr/share/man" "$root/usr/share/info" "$root/usr/share/locale" -mindepth 1 -delete 2>/dev/null || true
find "$root/usr/share/doc" -type f ! -name copyright -delete
find "$root/usr/share/doc" -type l -delete
find "$root/usr/share/doc" -mindepth 1 -type d -empty -delete

# Its only line calls a program this image does not have, which fails every login shell that ends with `set -e`.
rm -f "$root/etc/skel/.bash_logout"
chroot "$root" useradd --create-home --uid 1000 --user-group --shell /bin/bash user
printf 'user ALL=(ALL:ALL) NOPASSWD: ALL\n' > "$root/etc/sudoers.d/user"
chmod 0440 "$root/etc/sudoers.d/user"

printf 'LANG=C.UTF-8\n' > "$root/etc/default/locale"
# A sandbox is thrown away, so pip may install beside the system's packages.
printf '[global]\nbreak-system-packages = true\nroot-user-action = ignore\n' > "$root/etc/pip.conf"
printf 'localhost\n' > "$root/etc/hostname"
printf '127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n' > "$root/etc/hosts"

# What names this one machine, or only helped to build it.
: > "$root/etc/machine-id"
rm -f "$root/etc/resolv.conf" "$root/var/lib/dbus/machine-id"
find "$root/var/lib/apt/lists" "$root/var/cache/apt" -type f -delete
rm -rf "$root"/var/log/* "$root"/var/cache/debconf/*-old "$root"/var/lib/dpkg/*-old "$root"/var/tmp/*
# But for apt's settings that mmdebstrap keeps there and removes itself: without them its last call of apt
# means the host's own lists.
find "$root/tmp" -mindepth 1 ! -name 'mmdebstrap.apt.conf.*' -delete
# 32 MB that only help to debug the compiler itself.
rm -f "$root"/usr/bin/*-lto-dump-* "$root"/usr/bin/lto-dump*
