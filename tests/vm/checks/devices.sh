# Pins, I²C chips and power rails through the kernel's own interfaces: gpio-sim, a bus whose chips remember what is
# written to them, and the kernel's driver of the INA3221.
. /host/guest/checks.bash
systemctl stop edgeopt-agent

modprobe gpio-simulator
mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config
board=/sys/kernel/config/gpio-sim/board
mkdir -p $board/bank/line3 $board/bank/line5
echo 8 >$board/bank/num_lines
echo LAMP >$board/bank/line3/name
echo HORN >$board/bank/line5/name
# As the udev rules of a Jetson give it to the group.
mkdir -p /run/udev/rules.d
echo 'SUBSYSTEM=="gpio", KERNEL=="gpiochip*", GROUP="gpio", MODE="0660"' >/run/udev/rules.d/70-gpio.rules
udevadm control --reload
echo 1 >$board/live
chip=$(cat $board/bank/chip_name)
lines=/sys/devices/platform/$(cat $board/dev_name)/$chip

modprobe i2c-dev
modprobe i2c-chips bytes=0x68 words=0x40,0x41
udevadm settle
bus=$(grep -l "chips that remember" /sys/bus/i2c/devices/i2c-*/name | sed -E 's/.*i2c-([0-9]+).*/\1/')

# word CHIP REGISTER VALUE: 16 bits, high byte first.
word() { i2cset -y "$bus" "$1" "$2" $(($3 >> 8 | ($3 & 255) << 8)) w; }
for ina3221 in 0x40 0x41; do
    word $ina3221 0xFE 0x5449
    word $ina3221 0xFF 0x3220
    word $ina3221 0x0F 1      # conversions are ready
    word $ina3221 0x01 2000   # channel 1: 10 mV at the shunt
    word $ina3221 0x02 5000   # 5 V on the bus
done
byte() { i2cset -y "$bus" 0x68 "$1" "$2"; }
byte 0x75 0x68                       # who am I
byte 0x3B 0x40; byte 0x3C 0x00       # x: 1 g
byte 0x3D 0xC0; byte 0x3E 0x00       # y: -1 g
byte 0x3F 0x20; byte 0x40 0x00       # z: 0.5 g

modprobe ina3221
echo ina3221 0x40 >/sys/bus/i2c/devices/i2c-"$bus"/new_device
check "the kernel's driver has the INA3221 at 0x40" contains ina3221 cat /sys/class/hwmon/hwmon0/name

cp -p /etc/edgeopt/agent.toml /tmp/without.toml
cat >>/etc/edgeopt/agent.toml <<TOML
[slots.motion]
inputs = []
[hardware.outputs.lamp]
kind = "gpio"
chip = "/dev/$chip"
line = "LAMP"
[hardware.outputs.horn]
kind = "gpio"
chip = "/dev/$chip"
line = 5
active_low = true
[[hardware.rules]]
slot = "digits"
when = "/classes/0/index == 7"
output = "lamp"
hold_ms = 2000
[[hardware.rules]]
slot = "motion"
when = "/outputs/0/values/0 >= 1.5"
output = "horn"
hold_ms = 1000
[hardware.ina3221.carrier]
bus = "/dev/i2c-$bus"
address = 0x41
channels = [{ channel = 1, rail = "LASER", shunt_milliohms = 10.0 }]
[hardware.sensors.accelerometer]
bus = "/dev/i2c-$bus"
address = 0x68
slot = "motion"
interval_us = 100_000
window = 8
identity = { register = 0x75, value = 0x68 }
setup = [{ register = 0x6B, value = 0x01 }]
channels = [
    { register = 0x3B, format = "i16be", scale = 0.00006103515625 },
    { register = 0x3D, format = "i16be", scale = 0.00006103515625 },
    { register = 0x3F, format = "i16be", scale = 0.00006103515625 },
]
[hardware.throttle]
interval_s = 1
dwell_s = 2
[[hardware.throttle.limits]]
when = { kind = "power", rail = "LASER", above = 8.0, below = 7.0 }
rate = 1.0
TOML

check "the configuration is good, seen as the user edgeopt" runuser -u edgeopt -- edgeopt-agent check
check "the daemon starts under the unit with all of it" systemctl start edgeopt-agent
is_level() { is "$(cat "$lines/sim_gpio$1/value")" "$2"; }
check "both pins are taken" is "$(gpioinfo "$chip" | grep -c 'edgeopt-agent.*output')" 2
check "inactive: LAMP is low" is_level 3 0
check "inactive: HORN, active low, is high" is_level 5 1

deploy() { edgeopt fleet deploy "/host/$1-1.edge" --device device --slot "$1" --timeout 120; }
check "the digits' model answers" eval "predict || deploy digits && predict"
check "a 0 leaves the lamp off" is_level 3 0
on_a_seven() { predict /host/digits/0001.png && eventually 2 is_level 3 1; }
check "a 7 switches it on" on_a_seven
check "and off after its two seconds" eventually 6 is_level 3 0

check "the sensor was set up: register 0x6B" is "$(i2cget -y "$bus" 0x68 0x6B)" 0x01
check "a model for the sensor's windows" deploy motion
moves() { edgeopt fleet listen --device device --slot motion --count 1 --seconds 20 --json; }
check "windows of the sensor are answered: 1 g, -1 g, 0.5 g" contains '"values":[1.0,-1.0,0.5]' moves
check "the horn is silent" is_level 5 1
byte 0x3B 0x70                       # x: 1.75 g
check "1.75 g: the horn, low" eventually 10 is_level 5 0
byte 0x3B 0x40
check "and high again" eventually 10 is_level 5 1

telemetry() { edgeopt fleet listen --device device --telemetry --seconds 5 --json | grep telemetry/power; }
check "telemetry: 5 W on the rail LASER, from the chip itself" contains '"LASER":5.0' telemetry
check "telemetry: 5 W on channel 1 of the other, from the kernel's driver" contains '"ina3221.1":5.0' telemetry
limited() { contains '"rate_limit' edgeopt fleet listen --device device --telemetry --seconds 4 --json; }
word 0x41 0x01 4000                  # 20 mV at the shunt: 2 A, 10 W
check "10 W: inference is limited" eventually 10 contains "1" limited
word 0x41 0x01 2000

# An output whose slot ends does not stay active, however long it was to be.
removed() {
    sed -i 's/hold_ms = 2000/hold_ms = 60000/' /etc/edgeopt/agent.toml
    systemctl reload edgeopt-agent
    lit() { predict /host/digits/0001.png && is_level 3 1; }
    eventually 30 lit || return
    edgeopt fleet remove --device device --slot digits
    eventually 5 is_level 3 0 && is "$(gpioinfo "$chip" | grep -c 'edgeopt-agent.*output')" 2
}
check "the lamp goes off when its model is removed" removed
taken() {
    sed -i 's/address = 0x41/address = 0x40/' /etc/edgeopt/agent.toml
    systemctl restart edgeopt-agent
    sleep 2
    contains "is read through hwmon instead" journalctl -u edgeopt-agent -b --no-pager -n 20
}
check "an address that the kernel has is refused, with the reason" taken
cp -p /tmp/without.toml /etc/edgeopt/agent.toml
systemctl restart edgeopt-agent
check "without devices again: the digits' model for who comes next" deploy digits
