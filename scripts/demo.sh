#!/usr/bin/env bash
# demo.sh: two workers compete for one lease of a local cluster, twice: once
# without waiting, once one after the other. Ends with code 1 if anything is not
# as it should be, and leaves no process behind.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=$(mktemp -d)
cluster=
workers=()

# finish ends what is still running, by its process id.
finish() {
	local pid
	for pid in "${workers[@]}" $cluster; do
		kill -TERM "$pid" 2>/dev/null || continue
		for _ in {1..100}; do
			kill -0 "$pid" 2>/dev/null || break
			sleep 0.1
		done
		kill -KILL "$pid" 2>/dev/null || true
	done
	rm -rf "$dir"
}
trap finish EXIT
trap 'exit 130' INT TERM

say() { printf '\n# %s\n' "$*"; }
fail() {
	printf 'demo: %s\n' "$*" >&2
	printf 'What the cluster has said:\n' >&2
	cat "$dir/cluster" >&2
	exit 1
}

# free tells whether nothing listens on a port of loopback.
free() { ! (: <>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# work starts a worker in the background: its name and how long it waits. It
# writes down its token when it begins and when it ends.
work() {
	local name=$1 wait=$2
	bin/coordd run nightly --ttl 5s --wait "$wait" -- sh -c '
		echo "begin $COORDD_FENCING_TOKEN" >>"$0/journal"
		echo "'"$name"': I work under token $COORDD_FENCING_TOKEN"
		sleep 2
		echo "end $COORDD_FENCING_TOKEN" >>"$0/journal"' "$dir" > >(sed "s/^coordd/$name: coordd/") 2>&1 &
	workers+=($!)
}

# expect waits for the workers and compares their exit codes, the smaller first.
expect() {
	local want=$1 pid code codes=
	for pid in "${workers[@]}"; do
		code=0
		wait "$pid" || code=$?
		codes+="$code"$'\n'
	done
	workers=()
	codes=$(sort -n <<<"${codes%$'\n'}" | paste -sd ' ')
	echo "Their exit codes: $codes"
	[ "$codes" = "$want" ] || fail "want the exit codes $want"
}

say 'Build coordd.'
go build -tags hashicorpmetrics -o bin/coordd ./cmd/coordd

port=7420
until free $port && free $((port + 10)) && free $((port + 20)); do
	port=$((port + 100))
	[ $port -lt 20000 ] || fail 'no free ports on 127.0.0.1'
done
export COORDD_ADDR=127.0.0.1:$port,127.0.0.1:$((port + 10)),127.0.0.1:$((port + 20))

say "Start a cluster of three: coordd dev --listen 127.0.0.1:$port"
bin/coordd dev --listen "127.0.0.1:$port" >"$dir/cluster" 2>&1 &
cluster=$!
for try in {1..60}; do
	bin/coordd status --timeout 1s >"$dir/status" 2>&1 && break
	kill -0 $cluster 2>/dev/null || fail 'the cluster has ended'
	[ $try -lt 60 ] || fail "the cluster does not serve: $(cat "$dir/status")"
	sleep 0.2
done
cat "$dir/status"

say 'Two workers want the same lease and do not wait: coordd run nightly --wait 0 -- ...'
work A 0
work B 0
expect '0 75' # one has worked, one was told that the lease is held

say 'Two workers want it and wait for each other: coordd run nightly --wait 30s -- ...'
work C 30s
work D 30s
expect '0 0'

say 'What the three that worked have written down, with their fencing tokens:'
cat "$dir/journal"
awk '
	$1 == "begin" { if (token != "" || $2 + 0 <= last + 0) exit bad = 1; token = last = $2 }
	$1 == "end" { if ($2 != token) exit bad = 1; token = ""; n++ }
	END { exit bad || n != 3 }' "$dir/journal" || fail 'want three that worked, one after the other, each with a greater token'

say 'Never two at once, and every token greater than the one before. The lease now:'
bin/coordd status nightly || fail 'the lease has no status'
