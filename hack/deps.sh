#!/usr/bin/env bash
# Installs the system packages that the build needs and that this machine lacks. Says what it does; does nothing twice.
# Names of groups add what only some targets need: `ssh` for tests on real SSH servers, `ansible` for the benchmark against it,
# `hosts` for real hosts on this machine.
set -euo pipefail

missing=()
command -v cc >/dev/null || missing+=(build-essential)
command -v git >/dev/null || missing+=(git)
command -v flock >/dev/null || missing+=(util-linux)
[ -e /etc/ssl/certs/ca-certificates.crt ] || missing+=(ca-certificates)
for group in "$@"; do
  case $group in
  ssh)
    [ -x /usr/sbin/sshd ] || missing+=(openssh-server)
    command -v ssh-keygen >/dev/null || missing+=(openssh-client)
    ;;
  ansible)
    command -v ansible-playbook >/dev/null || missing+=(ansible-core)
    ;;
  hosts)
    if [ "$(uname -s)" != Linux ] || [ "$(id -u)" != 0 ]; then
      echo "deps: real hosts need Linux and root; this is $(uname -s) and user $(id -un)" >&2
      exit 1
    fi
    need() { command -v "$1" >/dev/null || [ -x "/usr/sbin/$1" ] || missing+=("$2"); }
    need debootstrap debootstrap
    need systemd-nspawn systemd-container
    need ip iproute2
    need nft nftables
    need curl curl
    need dig bind9-dnsutils
    need nc netcat-openbsd
    need mount mount
    need ssh openssh-client
    need apt-ftparchive apt-utils
    need dpkg-deb dpkg
    need dpkg-scanpackages dpkg-dev
    need zstd zstd
    need busybox busybox-static
    need qemu-system-x86_64 qemu-system-x86
    need mkfs.ext4 e2fsprogs
    need pgrep procps
    need buildah buildah
    [ -e /etc/protocols ] || missing+=(netbase)
    ;;
  *)
    echo "deps: there is no group $group; there are: ssh, ansible, hosts" >&2
    exit 1
    ;;
  esac
done
command -v cargo >/dev/null || {
  echo "deps: cargo is missing; install Rust 1.90 or newer (https://rustup.rs) and try again" >&2
  exit 1
}
[ ${#missing[@]} -eq 0 ] && exit 0

if ! command -v apt-get >/dev/null || [ "$(id -u)" != 0 ]; then
  echo "deps: please install: ${missing[*]}" >&2
  exit 1
fi
echo "deps: installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${missing[@]}"
