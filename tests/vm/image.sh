#!/usr/bin/env bash
# Makes the virtual machine's disk: Debian 12 with systemd, mosquitto, Debian's own kernel, and nothing of edgeopt.
# Prints the folder that holds `root.img`, `vmlinuz` and `initrd`. The folder is named after this file's content, so
# the image is made anew when it changes.
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
key=$(cat tests/vm/image.sh tests/vm/i2c_chips.c | sha256sum | cut -c1-16)
if [ -e "$cache/$key/root.img" ]; then
    echo "$cache/$key"
    exit
fi

work=$cache/$key.part
rm -rf --one-file-system "$work" && mkdir -p "$work"
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

# Debian's kernel has no gpio-sim, which makes GPIO chips for tests, and no driver of the INA3221, which a Jetson's has:
# built from its sources. gpio-sim needs irq_sim.c, which is part of a kernel or not there; what a module may not call in
# it (`irq_to_desc`) has an equivalent.
modules=$work/modules.sh
cat >"$modules" <<'SH'
set -eu
chroot "$1" apt-get install --yes --quiet --no-install-recommends linux-headers-amd64 linux-source-6.1 gcc-12 make xz-utils >&2
mkdir "$1/tmp/modules"
cp tests/vm/i2c_chips.c "$1/tmp/modules/i2c-chips.c"
chroot "$1" sh -eu <<'IN'
version=$(basename /lib/modules/*)
cd /tmp/modules
source=linux-source-6.1
tar -xJf /usr/src/$source.tar.xz --strip-components=3 $source/drivers/gpio/gpio-sim.c $source/drivers/gpio/gpiolib.h \
    $source/kernel/irq/irq_sim.c $source/drivers/hwmon/ina3221.c
sed -i 's/handle_simple_irq(irq_to_desc(\(.*\)));/generic_handle_irq_safe(\1);/' irq_sim.c
printf 'obj-m := gpio-simulator.o ina3221.o i2c-chips.o\ngpio-simulator-y := gpio-sim.o irq_sim.o\n' >Makefile
make -s -C /lib/modules/$version/build M=$PWD modules >&2
install -D -m 644 -t /lib/modules/$version/updates gpio-simulator.ko ina3221.ko i2c-chips.ko
depmod $version
rm -rf /tmp/modules
IN
chroot "$1" apt-get purge --yes --quiet --autoremove linux-headers-amd64 linux-source-6.1 gcc-12 make xz-utils >&2
SH

finish=$work/finish.sh
cat >"$finish" <<'SH'
set -eu
echo device >"$1/etc/hostname"
printf '127.0.0.1 localhost device\n' >"$1/etc/hosts"
printf '/dev/vda / ext4 defaults,errors=remount-ro 0 1\nhost /host 9p trans=virtio,ro,msize=262144,nofail,x-systemd.device-timeout=5s 0 0\n' >"$1/etc/fstab"
mkdir -p "$1/host" "$1/var/log/journal"
# The host is at 10.0.2.2 (QEMU's user network); nothing waits for it.
printf 'SUBSYSTEM=="net", ACTION=="add", DRIVERS=="virtio_net", RUN+="/bin/ip address add 10.0.2.15/24 dev $name", RUN+="/bin/ip link set $name up"\n' \
    >"$1/etc/udev/rules.d/70-wired.rules"
printf '[Journal]\nStorage=persistent\nSystemMaxUse=64M\nRateLimitIntervalSec=0\nSyncIntervalSec=5s\n' \
    >"$1/etc/systemd/journald.conf"
# Debian's mosquitto writes retained messages to disk every half hour; the checks cut the power more often.
printf 'autosave_interval 1\nautosave_on_changes true\nmessage_size_limit 1048576\n' >"$1/etc/mosquitto/conf.d/machine.conf"
chroot "$1" systemctl enable --quiet mosquitto
chroot "$1" systemctl mask --quiet apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer \
    e2scrub_reap.service getty@tty1.service systemd-networkd-wait-online.service fstrim.timer \
    systemd-pcrphase.service systemd-pcrphase-sysinit.service serial-getty@ttyS0.service systemd-binfmt.service \
    systemd-update-utmp-runlevel.service modprobe@dm_mod.service modprobe@drm.service modprobe@efi_pstore.service \
    modprobe@loop.service modprobe@fuse.service dev-hugepages.mount sys-kernel-debug.mount sys-kernel-tracing.mount
chroot "$1" passwd --quiet -d root
rm -rf "$1/usr/share/doc" "$1/usr/share/man" "$1/usr/share/locale" "$1/var/lib/apt/lists" "$1/var/cache/apt"
SH

echo "making the virtual machine's image (once, some minutes)" >&2
# In a mount namespace, so that nothing stays mounted below $work if this is interrupted.
timeout 900 unshare --mount mmdebstrap --quiet --mode=root --variant=minbase --format=directory \
    --include="$(IFS=,; echo "${packages[*]}")" \
    --aptopt='Acquire::Retries "3"' --dpkgopt='path-exclude=/usr/share/man/*' \
    --essential-hook="sh $prepare \"\$1\"" --customize-hook="sh $modules \"\$1\"" --customize-hook="sh $finish \"\$1\"" \
    bookworm "$work/root" >&2 ${EDGEOPT_VM_MIRROR:+"$EDGEOPT_VM_MIRROR"}

cp "$work"/root/boot/vmlinuz-* "$work/vmlinuz"
cp "$work"/root/boot/initrd.img-* "$work/initrd"
cp "$work"/root/boot/config-* "$work/config"
rm -f "$work"/root/boot/initrd.img-* "$work"/root/boot/System.map-*
mke2fs -q -t ext4 -L root -m 1 -d "$work/root" "$work/root.img" 2560M
rm -rf "$work/root" "$prepare" "$modules" "$finish"
rm -rf "${cache:?}/$key" && mv "$work" "$cache/$key"
echo "$cache/$key"
