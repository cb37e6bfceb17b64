#!/usr/bin/env bash
# Makes the virtual machine's disk: Debian 12 with systemd, mosquitto, Debian's own kernel, and nothing of edgeopt.
# Prints the folder that holds `root.img`, `vmlinuz` and `initrd`. The folder is named after this file's content, so
# the image is made anew when this file changes.
set -euo pipefail
cd "$(dirname "$0")/../.."

for tool in mmdebstrap mke2fs qemu-system-x86_64 mosquitto; do
    command -v "$tool" >/dev/null || missing=1
done
if [ -n "${missing:-}" ]; then
    echo "image.sh: missing tools; on Debian: apt-get install mmdebstrap e2fsprogs qemu-system-x86 mosquitto" >&2
    exit 1
fi
if [ "$(id -u)" != 0 ]; then
    echo "image.sh: run as root: the image's files belong to the users of the image" >&2
    exit 1
fi

cache=$PWD/.cache/vm
key=$(sha256sum "tests/vm/image.sh" | cut -c1-16)
if [ -e "$cache/$key/root.img" ]; then
    echo "$cache/$key"
    exit
fi

work=$cache/$key.part
rm -rf "$work" && mkdir -p "$work"
packages=(
    systemd systemd-sysv dbus udev kmod util-linux e2fsprogs procps iproute2 ca-certificates
    linux-image-amd64 initramfs-tools qemu-guest-agent
    mosquitto mosquitto-clients python3-minimal curl
    gpiod i2c-tools v4l-utils
)

# Written before the kernel's package runs update-initramfs: only what finds and mounts the root disk, so that a boot
# takes seconds.
prepare=$work/prepare.sh
cat >"$prepare" <<'SH'
set -eu
mkdir -p "$1/etc/initramfs-tools/conf.d"
printf 'MODULES=list\nCOMPRESS=gzip\nRESUME=none\n' >"$1/etc/initramfs-tools/conf.d/machine"
printf 'virtio_pci\nvirtio_blk\next4\n' >"$1/etc/initramfs-tools/modules"
SH

finish=$work/finish.sh
cat >"$finish" <<'SH'
set -eu
echo device >"$1/etc/hostname"
printf '127.0.0.1 localhost device\n' >"$1/etc/hosts"
printf '/dev/vda / ext4 defaults,errors=remount-ro 0 1\nhost /host 9p trans=virtio,ro,msize=262144,nofail,x-systemd.device-timeout=5s 0 0\n' >"$1/etc/fstab"
mkdir -p "$1/host" "$1/var/log/journal"
# The host is at 10.0.2.2 (QEMU's user network); nothing waits for it.
printf '[Match]\nType=ether\n[Network]\nAddress=10.0.2.15/24\nGateway=10.0.2.2\n' >"$1/etc/systemd/network/wired.network"
printf '[Journal]\nStorage=persistent\nSystemMaxUse=64M\nRateLimitIntervalSec=0\nSyncIntervalSec=5s\n' \
    >"$1/etc/systemd/journald.conf"
# Debian's mosquitto writes retained messages to disk every half hour; the checks cut the power more often.
printf 'autosave_interval 1\nautosave_on_changes true\nmessage_size_limit 1048576\n' >"$1/etc/mosquitto/conf.d/machine.conf"
chroot "$1" systemctl enable --quiet systemd-networkd mosquitto
chroot "$1" systemctl mask --quiet apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer \
    e2scrub_reap.service getty@tty1.service systemd-networkd-wait-online.service fstrim.timer \
    systemd-pcrphase.service systemd-pcrphase-sysinit.service serial-getty@ttyS0.service
chroot "$1" passwd --quiet -d root
rm -rf "$1/usr/share/doc" "$1/usr/share/man" "$1/usr/share/locale" "$1/var/lib/apt/lists" "$1/var/cache/apt"
SH

echo "making the virtual machine's image (once, about two minutes)" >&2
timeout 900 mmdebstrap --quiet --mode=root --variant=minbase --format=directory \
    --include="$(IFS=,; echo "${packages[*]}")" \
    --aptopt='Acquire::Retries "3"' --dpkgopt='path-exclude=/usr/share/man/*' \
    --essential-hook="sh $prepare \"\$1\"" --customize-hook="sh $finish \"\$1\"" \
    bookworm "$work/root" >&2 ${EDGEOPT_VM_MIRROR:+"$EDGEOPT_VM_MIRROR"}

cp "$work"/root/boot/vmlinuz-* "$work/vmlinuz"
cp "$work"/root/boot/initrd.img-* "$work/initrd"
cp "$work"/root/boot/config-* "$work/config"
rm -f "$work"/root/boot/initrd.img-* "$work"/root/boot/System.map-*
mke2fs -q -t ext4 -L root -m 1 -d "$work/root" "$work/root.img" 2560M
rm -rf "$work/root" "$prepare" "$finish"
rm -rf "${cache:?}/$key" && mv "$work" "$cache/$key"
echo "$cache/$key"
