# Keeps one host: runs in a mount and a network namespace of its own, so that what it mounts and links is gone with it.
#
#   supervisor.sh FOLDER TEMPLATE NAME CGROUP SIZE [OPTION OF NSPAWN…]
#
# Commands come on standard input, one a line; each is answered by one line, "ok" or "failed …". When standard input ends, because its owner
# closed it or was killed, the host ends and nothing is left.
exec 3<&0 </dev/null
folder=$1 template=$2 name=$3 cgroup=$4 size=$5
disk=$folder/disk root=$folder/root
shift 5

# The cgroup of each hierarchy that we begin in, and the one below it that is the host's.
cgroups() {
  while IFS=: read -r _ controllers path; do
    case $controllers in
      '') [ -e /sys/fs/cgroup/cgroup.controllers ] && { echo /sys/fs/cgroup; continue; }
          parent=/sys/fs/cgroup/unified$path ;;
      name=*) parent=/sys/fs/cgroup/${controllers#name=}$path ;;
      *) parent=/sys/fs/cgroup/$controllers$path ;;
    esac
    [ -d "$parent" ] && echo "${parent%/}"
  done </proc/self/cgroup
}
parents=$(cgroups)

enter_cgroups() {
  for parent in $parents; do
    mkdir -p "$parent/$cgroup" || return 1
    if [ -e "$parent/$cgroup/cpuset.mems" ] && [ -e "$parent/cpuset.mems" ]; then
      cat "$parent/cpuset.cpus" >"$parent/$cgroup/cpuset.cpus"
      cat "$parent/cpuset.mems" >"$parent/$cgroup/cpuset.mems"
      echo 1 >"$parent/$cgroup/cgroup.clone_children"
    fi 2>/dev/null
    echo $$ >"$parent/$cgroup/cgroup.procs" || return 1
  done
}

# What the host made is gone when it is off, as anywhere. A kubelet would look for containers there, for seconds each.
sweep_cgroups() {
  for parent in $parents; do
    find "$parent/$cgroup" -mindepth 1 -depth -type d -exec rmdir {} +
  done 2>/dev/null
}

leave_cgroups() {
  for parent in $parents; do
    echo $$ >"$parent/cgroup.procs"
    tries=0
    until find "$parent/$cgroup" -depth -type d -exec rmdir {} + || [ $tries -gt 50 ]; do
      xargs -r kill -KILL <"$parent/$cgroup/cgroup.procs"
      sleep 0.1
      tries=$((tries + 1))
    done
  done 2>/dev/null
}

# A fresh disk: the template below, /var on a file system of its own (container images cannot lie on an overlay), the seed on top.
install() {
  mkdir -p "$disk" "$root" &&
    mount -t tmpfs -o "size=$size,mode=755" tmpfs "$disk" &&
    mkdir "$disk/upper" "$disk/work" &&
    cp -a "$template/var" "$disk/var" &&
    mount -t overlay -o "lowerdir=$template,upperdir=$disk/upper,workdir=$disk/work" overlay "$root" &&
    (cd "$folder/seed" && find . -type f | while read -r file; do
      mkdir -p "$root/${file%/*}" && cp -p "$file" "$root/$file" || exit 1
    done)
}

discard() {
  tries=0
  until { ! mountpoint -q "$root" || umount "$root"; } && { ! mountpoint -q "$disk" || umount "$disk"; } || [ $tries -gt 50 ]; do
    sleep 0.1
    tries=$((tries + 1))
  done 2>/dev/null
  mountpoint -q "$root" && umount -l "$root"
  mountpoint -q "$disk" && umount -l "$disk"
  return 0
}

# Runs the host, with these options of nspawn, until it is powered off. A reboot ends nspawn with 133.
run() {
  while [ ! -e "$folder/ending" ]; do
    sweep_cgroups
    SYSTEMD_NSPAWN_API_VFS_WRITABLE=1 systemd-nspawn --quiet -D "$root" --bind="$disk/var:/var" --machine="$name" \
      --network-namespace-path=/proc/self/ns/net --register=no --keep-unit --boot --console=pipe --resolv-conf=off --timezone=off \
      --link-journal=no --capability=all --private-users=no --bind=/dev/kmsg \
      --system-call-filter='@mount @keyring bpf perf_event_open add_key request_key keyctl' "$@" \
      >>"$folder/console.log" 2>&1 &
    echo $! >"$folder/nspawn.tmp"
    mv "$folder/nspawn.tmp" "$folder/nspawn.pid"
    wait $!
    [ $? -eq 133 ] || break
    echo "-- reboot --" >>"$folder/console.log"
  done
  rm -f "$folder/nspawn.pid"
}

off() {
  : >"$folder/ending"
  [ -z "$running" ] && return
  while kill -0 "$running" && [ -e "$folder/nspawn.pid" ]; do
    # Everything in there dies with its init, but its init does not die with nspawn.
    nspawn=$(cat "$folder/nspawn.pid")
    inits=$(cat "/proc/$nspawn/task/$nspawn/children" || pgrep -P "$nspawn")
    kill -KILL $inits $nspawn
    sleep 0.05
  done 2>/dev/null
  wait "$running"
  running=
}

answer() {
  if "$@" >"$folder/said" 2>&1; then echo ok; else echo "failed $* ($?): $(tr '\n' ' ' <"$folder/said" | tail -c 2000)"; fi
}

network() {
  ip link set lo up &&
    ip link set eth0 up &&
    ip address add "$1" dev eth0 &&
    ip route add default via "$2" &&
    echo 1 >/proc/sys/net/ipv4/ip_forward
}

running=
answer enter_cgroups
answer install
while read -r command arguments <&3; do
  case $command in
    network) answer network $arguments ;;
    route) answer ip route replace $arguments ;;
    on)
      rm -f "$folder/ending"
      [ -n "$running" ] && wait "$running"
      run "$@" 3<&- >/dev/null &
      running=$!
      echo ok
      ;;
    off) off; echo ok ;;
    wipe) off; discard; answer install ;;
    limit) answer mount -o "remount,size=$arguments" "$disk" ;;
    *) echo "failed: $command is no command" ;;
  esac
done
off
# The kernel keeps a network as long as connections in it wait for an answer, which may be minutes. The link does not have to.
ip link delete eth0 2>/dev/null
discard
leave_cgroups
