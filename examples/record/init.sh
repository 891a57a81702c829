#!/bin/bash
# First process of the guest that record.sh boots: builds the namespaces, runs ping and the TCP flows, halts.
set -euo pipefail
export PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C PYTHONDONTWRITEBYTECODE=1
trap 'halt -f' EXIT

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t hostfs -o "$RECORD_WORK" none /mnt
mount -t tmpfs tmpfs /run
cd /mnt

modules=/usr/lib/uml/modules/$(uname -r)/kernel
insmod "$modules/drivers/net/veth.ko"
insmod "$modules/net/sched/sch_netem.ko"

namespace() {
    ip netns add "$1"
    ip -n "$1" link set lo up
    # Otherwise a flow inherits slow-start threshold and RTT from an earlier one to the same address.
    ip netns exec "$1" sysctl -q -w net.ipv4.tcp_no_metrics_save=1
}

# link SENDER RECEIVER SUBNET DATA_NETEM ACK_NETEM: veth pair with SUBNET.1 on the sender's side and SUBNET.2 on the
# receiver's. Loss belongs into DATA_NETEM only.
link() {
    local sender=$1 receiver=$2 subnet=$3 data_netem=$4 ack_netem=$5
    local device=v${subnet//./-}
    ip -n "$sender" link add "$device" type veth peer name "$device" netns "$receiver"
    local end netem host
    for end in "$sender" "$receiver"; do
        if [ "$end" = "$sender" ]; then netem=$data_netem host=1; else netem=$ack_netem host=2; fi
        # Without both, netem delays and drops several segments as one packet.
        ip netns exec "$end" ethtool -K "$device" tso off gso off gro off
        ip -n "$end" link set "$device" gso_max_segs 1
        ip -n "$end" address add "$subnet.$host/24" dev "$device"
        ip -n "$end" link set "$device" up
        # shellcheck disable=SC2086 # netem options are several words
        tc -n "$end" qdisc add dev "$device" root netem $netem
    done
}

receive() { ip netns exec "$1" python3 flow.py receive --port "$2" & }
send() { ip netns exec "$1" python3 flow.py send "${@:2}" >>report.txt & }

for name in single-tx single-rx several-tx several-rx clean-tx clean-rx; do namespace "$name"; done
link single-tx single-rx 10.0.0 "delay 50ms loss 2% limit 10000" "delay 50ms limit 10000"
link several-tx several-rx 10.0.1 "delay 50ms loss 2% limit 10000" "delay 50ms limit 10000"
link several-tx several-rx 10.0.2 "delay 50ms limit 10000" "delay 50ms limit 10000"
link several-tx several-rx 10.0.3 "delay 10ms loss 5% limit 10000" "delay 10ms limit 10000"
link several-tx several-rx 10.0.4 "delay 25ms rate 5mbit limit 100" "delay 25ms limit 10000"
link clean-tx clean-rx 10.0.5 "delay 20ms 2ms limit 10000" "delay 20ms 2ms limit 10000"

{
    echo "kernel $(uname -r), $(ss -V), $(ping -V | head -n 1)"
    echo "congestion control $(ip netns exec single-tx sysctl -n net.ipv4.tcp_congestion_control)"
} >report.txt

# Resolves the neighbours, which costs the first packet one more round trip.
ip netns exec clean-tx ping -q -c 3 10.0.5.2 >/dev/null
ip netns exec single-tx ping -q -c 3 10.0.0.2 >/dev/null
ip netns exec clean-tx ping -c 20 10.0.5.2 >ping-clean.txt &
clean_ping=$!
# ping exits with 1 only if nothing came back; a recording with some losses is a success.
ip netns exec single-tx ping -c 200 -i 0.2 10.0.0.2 >ping.txt
wait "$clean_ping"

receive single-rx 5001
receive several-rx 5001
receive several-rx 5002
receive several-rx 5003
receive several-rx 5004
sleep 2
duration_s=70
send single-tx --host 10.0.0.2 --port 5001 --packet 174 --interval 0.02 --duration $duration_s
send several-tx --host 10.0.1.2 --port 5001 --packet 174 --interval 0.02 --duration $duration_s
send several-tx --host 10.0.2.2 --port 5002 --packet 174 --interval 0.02 --duration $duration_s
send several-tx --host 10.0.3.2 --port 5003 --packet 724 --interval 0.03 --duration $duration_s
send several-tx --host 10.0.4.2 --port 5004 --packet 65536 --interval 0 --duration $duration_s
sleep 65
ip netns exec single-tx ss -tin >ss.txt
ip netns exec several-tx ss -tin >ss-several.txt
for name in single-tx several-tx; do
    tc -s -n "$name" qdisc show | grep --no-group-separator -A 1 netem >>report.txt
done
wait

[ "$(grep -c ESTAB ss.txt)" = 1 ]
[ "$(grep -c ESTAB ss-several.txt)" = 4 ]
grep -q 'packets transmitted' ping.txt
grep -q ' 0% packet loss' ping-clean.txt
touch complete
