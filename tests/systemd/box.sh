#!/bin/bash
# A real systemd as PID 1 of throw-away namespaces; box.py is what calls this.
#   box.sh up DIR [--host-net] [SOURCE:TARGET[:ro]]...   returns when it has started
#   box.sh run DIR COMMAND...                            inside, as root
#   box.sh down DIR                                      kills all of it and removes every trace
# DIR/units/* lie in /etc/systemd/system, DIR/files/* in /.  Nothing of the host can be written from
# inside: the root is a tmpfs, /usr a read-only bind, /sys and /proc/sys are read-only.  That keeps
# accidents in; root inside is still root.
set -euo pipefail
self=$(readlink -f "$0")
verb=$1
DIR=$(readlink -f "$2")
shift 2

# Of the stock units no more than these: no mounts, terminals, sysctls, udev or timers of the host.
STOCK="systemd-journald.service systemd-journald.socket systemd-journald-dev-log.socket
  sysinit.target basic.target sockets.target timers.target paths.target slices.target
  local-fs.target local-fs-pre.target multi-user.target network.target network-pre.target
  network-online.target nss-user-lookup.target shutdown.target umount.target final.target
  rescue.target emergency.target modprobe@.service"

cgroup2() { awk '$0 ~ / - cgroup2 / { print $5; exit }' /proc/self/mountinfo; }

up() {
  local net=--net
  if [ "${1-}" = --host-net ]; then net=; shift; fi
  local base pid
  base=$(cgroup2)
  if [ -z "$base" ]; then echo "no cgroup2 is mounted" >&2; exit 3; fi
  local cgroup=$base/specd-box-$$
  mkdir "$cgroup"
  echo "$cgroup" >"$DIR/cgroup"
  mkdir -p "$DIR/root"
  (
    echo $BASHPID >"$cgroup/cgroup.procs"
    exec setsid unshare --mount --propagation private --pid --fork --kill-child --uts --ipc \
      --cgroup $net "$self" inside "$DIR" "$@" >"$DIR/boot.log" 2>&1 </dev/null
  ) &
  local outer=$!
  for _ in $(seq 300); do
    pid=$(tr -d ' ' 2>/dev/null <"/proc/$outer/task/$outer/children" || true)
    if [ -n "$pid" ] && [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = systemd ] \
      && [ -S "/proc/$pid/root/run/systemd/private" ]; then break; fi
    kill -0 $outer 2>/dev/null || { cat "$DIR/boot.log" >&2; exit 4; }
    sleep 0.02
  done
  echo "$pid" >"$DIR/pid"
  "$self" run "$DIR" systemctl is-system-running --wait
}

inside() {
  cd "$DIR/root"
  mount -t tmpfs -o mode=755,size=2g box .
  cd "$DIR/root"
  mkdir -p usr etc/systemd/system etc/systemd/journald.conf.d dev proc sys run tmp root home opt \
    var/lib var/log var/tmp var/cache
  chmod 700 root
  chmod 1777 tmp var/tmp
  ln -s ../run var/run
  mount --bind /usr usr
  mount -o remount,bind,ro usr
  for link in bin sbin lib lib32 lib64 libx32; do
    if [ -L "/$link" ]; then cp -P "/$link" "$link"; fi
  done
  people
  stock_units
  kernel_file_systems
  for bind in "$@"; do
    IFS=: read -r source target mode <<<"$bind:"
    if [ -d "$source" ]; then mkdir -p ".$target"
    else mkdir -p ".$(dirname "$target")"; touch ".$target"; fi
    mount --bind "$source" ".$target"
    if [ "$mode" = ro: ]; then mount -o remount,bind,ro ".$target"; fi
  done
  if [ -d "$DIR/units" ]; then cp -r "$DIR/units/." etc/systemd/system/; fi
  if [ -d "$DIR/files" ]; then cp -r "$DIR/files/." .; fi
  mkdir before
  pivot_root . before
  cd /
  umount -l /before
  rmdir /before
  exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin container=box \
    /lib/systemd/systemd --system --unit=multi-user.target --log-target=journal --show-status=no
}

people() {
  cp -a /etc/ld.so.cache /etc/ld.so.conf.d etc/
  printf 'passwd: files\ngroup: files\nshadow: files\nhosts: files\n' >etc/nsswitch.conf
  printf '127.0.0.1 localhost box\n::1 localhost\n' >etc/hosts
  printf '%s\n' root:x:0:0::/root:/bin/sh nobody:x:65534:65534::/:/usr/sbin/nologin >etc/passwd
  printf '%s\n' root:x:0: adm:x:4: tty:x:5: video:x:44: systemd-journal:x:102: nogroup:x:65534: \
    >etc/group
  (umask 077; printf 'root:*:19000:0:99999:7:::\n' >etc/shadow; printf 'root:*::\n' >etc/gshadow)
  tr -d - </proc/sys/kernel/random/uuid >etc/machine-id
  hostname box
  printf '[Journal]\nStorage=volatile\nReadKMsg=no\nAudit=\nRateLimitBurst=0\n' \
    >etc/systemd/journald.conf.d/box.conf
}

stock_units() {
  local lib=usr/lib/systemd/system keep unit
  keep=$(mktemp -d /dev/shm/box.XXXXXX)
  for unit in $STOCK; do cp "$lib/$unit" "$keep/"; done
  mount -t tmpfs -o mode=755 units $lib
  cp "$keep"/* $lib/
  rm -rf "$keep"
  mkdir $lib/sysinit.target.wants $lib/sockets.target.wants
  ln -s ../systemd-journald.service $lib/sysinit.target.wants/
  ln -s ../systemd-journald.socket ../systemd-journald-dev-log.socket $lib/sockets.target.wants/
  mount -t tmpfs none usr/lib/systemd/system-generators
}

kernel_file_systems() {
  local part node name major minor
  mount -t proc -o nosuid,nodev,noexec proc proc
  for part in sys sysrq-trigger; do
    if [ ! -e proc/$part ]; then continue; fi
    mount --bind proc/$part proc/$part
    mount -o remount,bind,ro proc/$part
  done
  mount -t sysfs -o ro,nosuid,nodev,noexec sysfs sys
  mount -t cgroup2 -o nosuid,nodev,noexec cgroup2 sys/fs/cgroup
  mount -t tmpfs -o mode=755,nosuid dev dev
  mkdir dev/pts dev/shm dev/mqueue
  for node in null:1:3 zero:1:5 full:1:7 random:1:8 urandom:1:9 tty:5:0; do
    IFS=: read -r name major minor <<<$node
    mknod -m 666 dev/$name c $major $minor
  done
  ln -s /proc/self/fd dev/fd
  ln -s fd/0 dev/stdin; ln -s fd/1 dev/stdout; ln -s fd/2 dev/stderr
  mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts dev/pts
  ln -s pts/ptmx dev/ptmx
  mount -t tmpfs -o mode=1777,nosuid,nodev shm dev/shm
  mount -t tmpfs -o mode=755,nosuid,nodev run run
}

run() {
  exec nsenter -t "$(cat "$DIR/pid")" -m -p -u -i -n -C -- env -i \
    PATH=/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb SYSTEMD_PAGER= SYSTEMD_COLORS=0 LANG=C.UTF-8 "$@"
}

down() {
  local cgroup
  if [ -f "$DIR/pid" ]; then kill -9 "$(cat "$DIR/pid")" 2>/dev/null || true; fi
  if [ ! -f "$DIR/cgroup" ]; then return; fi
  cgroup=$(cat "$DIR/cgroup")
  for _ in $(seq 200); do
    find "$cgroup" -depth -type d -exec rmdir {} + 2>/dev/null || true
    [ -d "$cgroup" ] || break
    # What a start that failed half-way has left.
    cat "$cgroup/cgroup.procs" 2>/dev/null | xargs -r kill -9 2>/dev/null || true
    sleep 0.02
  done
  rmdir "$DIR/root" 2>/dev/null || true
  rm -f "$DIR/pid" "$DIR/cgroup" "$DIR/boot.log"
  [ ! -d "$cgroup" ]
}

case $verb in
up | inside | run | down) "$verb" "$@" ;;
*) echo "box.sh: no such verb: $verb" >&2; exit 2 ;;
esac
