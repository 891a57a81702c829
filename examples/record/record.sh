#!/bin/bash
# Records ping.txt, ping-clean.txt, ss.txt and ss-several.txt inside a User-Mode Linux guest.
#
#   sudo examples/record/record.sh [DIRECTORY]
#
# DIRECTORY receives the recordings (default: the directory above this script). Takes about two minutes.
# Debian packages: user-mode-linux iproute2 iputils-ping kmod ethtool python3 util-linux.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
destination=$(cd "${1:-$here/..}" && pwd)
recordings=(ping.txt ping-clean.txt ss.txt ss-several.txt)
work=/run/tcpdelay-record
time_limit_s=240

fail() { echo "record.sh: $*" >&2; exit 1; }

[ "$(id -u)" = 0 ] || fail "must run as root"
PATH=/usr/sbin:/usr/bin:/sbin:/bin
for program in linux.uml ip tc ss ping insmod ethtool python3 setpriv; do
    command -v "$program" >/dev/null || fail "needs the program $program"
done

# The lock on the work directory keeps a second run out; what a killed run left in it is removed here.
mkdir -p -m 700 "$work"
exec 9<"$work"
flock -n 9 || fail "another recording is under way (lock on $work)"
rm -rf "${work:?}"/*

guest=
clean_up() {
    if [ -n "$guest" ]; then
        kill "$guest" 2>/dev/null || true
        wait "$guest" 2>/dev/null || true
    fi
    rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT TERM HUP

# Copies, because the kernel command line cannot carry a path with blanks.
cp "$here/init.sh" "$here/flow.py" "$work"
chmod 755 "$work/init.sh"

# The guest sees the host's files read-only and writes into the work directory alone. It ends when its time limit is
# over or, by the parent-death signal, with this script.
echo "recording, about two minutes ..."
setpriv --pdeathsig TERM timeout --kill-after=5 "$time_limit_s" \
    linux.uml mem=512M root=/dev/root rootfstype=hostfs rootflags=/ ro init="$work/init.sh" \
    uml_dir="$work/" umid=guest random.trust_cpu=on quiet panic=1 con0=fd:0,fd:1 con=null ssl=null \
    RECORD_WORK="$work" </dev/null >"$work/console.log" 2>&1 9<&- &
guest=$!
wait "$guest" || true
guest=

if [ ! -e "$work/complete" ]; then
    tail -n 30 "$work/console.log" >&2
    fail "the guest did not finish the recording; the end of its console is above"
fi
for name in "${recordings[@]}"; do
    cp "$work/$name" "$destination/$name"
    chown --reference="$destination" "$destination/$name"
done
cat "$work/report.txt"
