# Keeps one emulated machine, as supervisor.sh keeps a host.
#
#   emulator.sh FOLDER TAP BRIDGE MAC MEMORY SERIAL
#
# What a boot loader would do is done here: kernel, initial RAM disk and command line are taken out of the machine's own disk at each boot.
exec 3<&0 </dev/null
folder=$1 tap=$2 bridge=$3 mac=$4 memory=$5 serial=$6
disk=$folder/disk.ext4

# Follows one link, as /vmlinuz is.
take() {
  path=$1
  link=$(debugfs -R "stat $path" "$disk" 2>/dev/null | sed -n 's/^Fast link dest: "\(.*\)"$/\1/p')
  case $link in
    '') ;;
    /*) path=$link ;;
    *) path=/$link ;;
  esac
  rm -f "$2"
  debugfs -R "dump $path $2" "$disk" >/dev/null 2>&1
  [ -s "$2" ]
}

load() {
  # A machine whose power was taken away left its journal to be replayed; 1 is "corrected".
  e2fsck -p "$disk" || [ $? -le 2 ] || return 1
  take /vmlinuz "$folder/vmlinuz" && take /initrd.img "$folder/initrd" || { echo "no /vmlinuz or /initrd.img on the disk"; return 1; }
  take /boot/fleetwright-cmdline "$folder/cmdline" || : >"$folder/cmdline"
}

run() {
  while [ ! -e "$folder/ending" ]; do
    load || break
    rm -f "$folder/qmp"
    mkfifo "$folder/qmp"
    # Open at both ends: it never ends by itself. Events are told only to who said hello.
    exec 4<>"$folder/qmp"
    echo '{"execute":"qmp_capabilities"}' >&4
    # Page tables of five levels are walked by the emulator: four take a quarter less time.
    # It needs a core of its own more than those around it do, which mostly wait: who may, goes before them.
    nice -n -10 qemu-system-x86_64 -accel tcg -cpu max,la57=off -m "$memory" -smp 1 -display none -no-reboot \
      -smbios "type=1,serial=$serial" -kernel "$folder/vmlinuz" -initrd "$folder/initrd" \
      -append "root=/dev/vda rw console=ttyS0 net.ifnames=0 panic=5 random.trust_cpu=on $(tr '\n' ' ' <"$folder/cmdline")" \
      -drive "file=$disk,format=raw,if=virtio,cache=unsafe" \
      -netdev "tap,id=net,ifname=$tap,script=no,downscript=no" -device "virtio-net-pci,netdev=net,mac=$mac" \
      -serial "file:$folder/serial.log" -qmp stdio <&4 >"$folder/qmp.log" 2>>"$folder/console.log" &
    echo $! >"$folder/qemu.tmp"
    mv "$folder/qemu.tmp" "$folder/qemu.pid"
    wait $!
    exec 4>&-
    cat "$folder/serial.log" >>"$folder/console.log"
    grep -q guest-reset "$folder/qmp.log" || break
    echo "-- reboot --" >>"$folder/console.log"
  done
  rm -f "$folder/qemu.pid"
}

off() {
  : >"$folder/ending"
  [ -z "$running" ] && return
  while kill -0 "$running" 2>/dev/null; do
    [ -e "$folder/qemu.pid" ] && kill -KILL "$(cat "$folder/qemu.pid")"
    sleep 0.05
  done 2>/dev/null
  wait "$running"
  running=
}

answer() {
  if "$@" >"$folder/said" 2>&1; then echo ok; else echo "failed $* ($?): $(tr '\n' ' ' <"$folder/said" | tail -c 2000)"; fi
}

link() {
  ip tuntap add dev "$tap" mode tap && ip link set "$tap" master "$bridge" up
}

running=
answer link
while read -r command arguments <&3; do
  case $command in
    on)
      rm -f "$folder/ending"
      [ -n "$running" ] && wait "$running"
      run 3<&- >>"$folder/console.log" 2>&1 &
      running=$!
      echo ok
      ;;
    off) off; echo ok ;;
    *) echo "failed: $command is no command" ;;
  esac
done
off
ip link delete "$tap" 2>/dev/null
rm -f "$disk" "$folder/vmlinuz" "$folder/initrd"
