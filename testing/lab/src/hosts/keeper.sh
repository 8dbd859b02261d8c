# Keeps a network's bridge and folder until standard input ends: its owner closed it, or was killed.
#
#   keeper.sh BRIDGE FOLDER
read -r _
ip link delete "$1" 2>/dev/null
# The hosts end at the same time and may still write.
tries=0
while [ ! -e "$2/keep" ] && [ -e "$2" ] && [ $tries -lt 100 ]; do
  rm -rf "$2" 2>/dev/null || sleep 0.1
  tries=$((tries + 1))
done
