# What the scripts of this folder share. Source it; bash with set -euo pipefail.
#
#	engine_maven NAME                  jars of NAME_ARTIFACTS into lib/NAME, once
#	engine_apt PACKAGE...              Debian packages, once
#	                                   (both: status 75 when the registry is not reached)
#	engine_need COMMAND PACKAGE        a command, or the package it comes in
#	engine_java                        sets JAVA
#	engine_start NAME DIR COMMAND...   in the background, in a process group of its own
#	engine_wait_port NAME DIR PORT [SECONDS [HOST]]   until it listens, or says why not
#	engine_wait NAME DIR SECONDS COMMAND...           until the command succeeds
#	engine_running DIR                 true while what engine_start began there lives
#	engine_stop NAME DIR [SECONDS]     SIGTERM, then SIGKILL
#	engine_port_free NAME PORT [HOST]  fails, and names who has it, when it is taken
#	engine_ready NAME ADDRESS LOG SECONDS    the line that a start ends with
#	engine_own_kafka PORT              an empty Kafka in a temporary folder, beside that of make
#	                                   engines; it ends with the script. Sets OWN_KAFKA, its
#	                                   addresses. NODES=3: three brokers
#
# DIR is the data folder of one server: its pid, its log (server.log) and its data
# are in it. Everything is idempotent.

engines_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# Data and process ids. A test that needs a server of its own sets another one.
ENGINES_DIR=${NOTIFY_ENGINES_DIR:-$engines_root/.engines}
# Jars. They are the same for every data folder.
ENGINES_LIB=${NOTIFY_ENGINES_LIB:-$engines_root/.engines/lib}
# shellcheck source=versions.env
source "$engines_root/scripts/engines/versions.env"

engine_fail() {
	printf 'engines: %s\n' "$*" >&2
	return 1
}

engine_ready() { printf '%-10s ready in %5.1f s   %s   log %s\n' "$1" "$4" "$2" "$3"; }

# engine_clock prints seconds with a fraction, for engine_ready.
engine_clock() { date +%s.%N; }
engine_since() { awk -v a="$1" -v b="$(engine_clock)" 'BEGIN { printf "%.1f", b - a }'; }

# engine_lock NAME COMMAND... runs it while nobody else of this machine has the lock.
engine_lock() {
	local name=$1
	shift
	mkdir -p "$ENGINES_LIB"
	(
		flock -w 600 9 || engine_fail "$name: another run has held $ENGINES_LIB/$name.lock for ten minutes" || exit 1
		"$@" 9>&-
	) 9>"$ENGINES_LIB/$name.lock"
}

engine_need() {
	command -v "$1" >/dev/null && return
	engine_apt "$2" || return
	command -v "$1" >/dev/null || engine_fail "$1 is missing: apt-get install $2"
}

engine_apt() { engine_lock apt engine_apt_locked "$@"; }

engine_apt_locked() {
	local p missing=()
	for p in "$@"; do
		[ "$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null)" = installed ] || missing+=("$p")
	done
	[ ${#missing[@]} -gt 0 ] || return 0
	command -v apt-get >/dev/null || engine_fail "missing: ${missing[*]}, and there is no apt-get here: install them by hand" || return
	[ "$(id -u)" = 0 ] || engine_fail "missing: ${missing[*]}. As root: apt-get install ${missing[*]}" || return
	local log=$ENGINES_LIB/apt.log
	echo "installing ${missing[*]}" >&2
	# A package must not start a server of its own on the standard port.
	local policy=/usr/sbin/policy-rc.d made=
	if [ ! -e "$policy" ]; then
		printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod +x "$policy" && made=1
	fi
	local failed=
	export DEBIAN_FRONTEND=noninteractive
	if ! timeout 300 apt-get install -y -q --no-install-recommends "${missing[@]}" >"$log" 2>&1; then
		{ timeout 300 apt-get update -q && timeout 300 apt-get install -y -q --no-install-recommends "${missing[@]}"; } >"$log" 2>&1 || failed=1
	fi
	[ -z "$made" ] || rm -f "$policy"
	[ -z "$failed" ] || engine_unresolved "$log" "apt-get could not install ${missing[*]}"
}

# engine_unresolved LOG WHAT says why something cannot be had: 75 where the log shows
# that its registry was not reached, which is nobody's mistake here, else 1.
engine_unresolved() {
	local log=$1 what=$2 why
	why=$({ grep -E '^(E:|Err|\[ERROR\])' "$log" || tail -1 "$log"; } | head -1 | cut -c1-300)
	if grep -q -i -E 'could not resolve( host|$)|temporary failure|unknown ?host|could not connect|connection (refused|timed out|reset)|connect timed out|network is unreachable|could not transfer|failed to fetch|no route to host' "$log" && ! grep -q 'Could not find artifact' "$log"; then
		engine_fail "the registry is not reached: $what. All of it: $log. $why" || return 75
	fi
	engine_fail "$what. All of it: $log. $why"
}

# engine_java sets JAVA to a java of the major version that the servers are tested
# with, and installs one where there is none.
engine_java() {
	engine_find_java && return
	# shellcheck disable=SC2086
	engine_apt $JAVA_PACKAGES || return
	engine_find_java || engine_fail "no Java $JAVA_MAJOR: apt-get install $JAVA_PACKAGES"
}

engine_find_java() {
	local j
	for j in "${JAVA_HOME:+$JAVA_HOME/bin/java}" "$(command -v java || true)" /usr/lib/jvm/*"-$JAVA_MAJOR-"*/bin/java; do
		if [ -x "$j" ] && "$j" -version 2>&1 | grep -q "version \"$JAVA_MAJOR[.\"]"; then
			JAVA=$j
			return
		fi
	done
	return 1
}

# engine_maven NAME resolves the artifacts of the variable NAME_ARTIFACTS, and all
# they need, into $ENGINES_LIB/name; a second call costs nothing.
engine_maven() {
	local name=$1 var=${1^^}_ARTIFACTS
	local lib=$ENGINES_LIB/$name artifacts=${!var}
	[ "$(cat "$lib/.complete" 2>/dev/null)" = "$artifacts" ] && return
	engine_lock "$name" engine_maven_locked "$name" "$lib" "$artifacts"
}

engine_maven_locked() {
	local name=$1 lib=$2 artifacts=$3 a g i v log=$ENGINES_LIB/$1.mvn.log
	[ "$(cat "$lib/.complete" 2>/dev/null)" = "$artifacts" ] && return
	engine_java || return
	# shellcheck disable=SC2086
	engine_need mvn $MAVEN_PACKAGES || return
	rm -rf "$lib" && mkdir -p "$lib"
	{
		echo '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
		echo "<groupId>engines</groupId><artifactId>$name</artifactId><version>1</version><packaging>pom</packaging><dependencies>"
		for a in $artifacts; do
			IFS=: read -r g i v <<<"$a"
			echo "<dependency><groupId>$g</groupId><artifactId>$i</artifactId><version>$v</version></dependency>"
		done
		echo '</dependencies></project>'
	} >"$lib/pom.xml"
	echo "resolving $artifacts" >&2
	if ! timeout 600 mvn -B -ntp -f "$lib/pom.xml" "$MAVEN_DEPENDENCY_PLUGIN:copy-dependencies" -DoutputDirectory="$lib" -DincludeScope=runtime >"$log" 2>&1; then
		engine_unresolved "$log" "Maven could not resolve $artifacts"
		return
	fi
	printf '%s' "$artifacts" >"$lib/.complete"
}

# engine_since_boot prints when a process began, in ticks: a pid alone may have gone
# to another process meanwhile.
engine_since_boot() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f20; }

engine_running() {
	local pid began
	read -r pid began 2>/dev/null <"$1/pid" || return 1
	[ -n "$began" ] && [ "$(engine_since_boot "$pid")" = "$began" ] && ! grep -q '^State:.*Z' "/proc/$pid/status" 2>/dev/null
}

engine_pid() { cut -d' ' -f1 "$1/pid"; }

engine_start() {
	local name=$1 dir=$2
	shift 2
	mkdir -p "$dir"
	engine_running "$dir" && return
	[ ! -s "$dir/server.log" ] || mv "$dir/server.log" "$dir/server.log.1"
	rm -f "$dir/pid"
	# The shell in between says its own pid, which is that of the group and, after
	# exec, of the server.
	setsid bash -c 'd=$1; shift; echo "$$ $(sed "s/.*) //" /proc/$$/stat | cut -d" " -f20)" >"$d/pid.new" && mv "$d/pid.new" "$d/pid" && exec "$@"' \
		"$name" "$dir" "$@" </dev/null >"$dir/server.log" 2>&1 &
	local n=0
	until [ -s "$dir/pid" ]; do
		n=$((n + 1))
		[ $n -lt 500 ] || engine_fail "$name did not start: see $dir/server.log" || return
		sleep 0.02
	done
}

engine_own_kafka() {
	engine_own_dir=$(mktemp -d)
	engine_own=(env -u KAFKA_PORT -u KAFKA_CONTROLLER_PORT NOTIFY_ENGINES_DIR="$engine_own_dir" NOTIFY_ENGINES_LIB="$ENGINES_LIB"
		NOTIFY_KAFKA_PORT="$1" "$engines_root/scripts/engines/kafka.sh")
	trap engine_own_end EXIT
	"${engine_own[@]}" start || return
	# shellcheck disable=SC2034
	OWN_KAFKA=$("${engine_own[@]}" addresses)
}

engine_own_end() {
	"${engine_own[@]}" stop >/dev/null || true
	rm -rf "$engine_own_dir"
}

engine_listening() { (exec 3<>"/dev/tcp/$1/$2") 2>/dev/null; }

engine_port_free() {
	local name=$1 port=$2 host=${3:-127.0.0.1}
	engine_listening "$host" "$port" || return 0
	engine_fail "$name: $host:$port is taken by $(ss -ltnpH "sport = :$port" 2>/dev/null | grep -o 'users:.*' | head -1 || echo 'another process'): stop it, or say another port (versions.env)"
}

engine_wait_port() { engine_wait "$1" "$2" "${4:-120}" engine_listening "${5:-127.0.0.1}" "$3"; }

engine_wait() {
	local name=$1 dir=$2 end=$((SECONDS + $3))
	shift 3
	until "$@" >/dev/null 2>&1; do
		if ! engine_running "$dir"; then
			tail -20 "$dir/server.log" >&2
			engine_fail "$name ended while starting; its log is $dir/server.log"
			return 1
		fi
		if [ "$SECONDS" -ge "$end" ]; then
			tail -20 "$dir/server.log" >&2
			engine_fail "$name is not ready; its log is $dir/server.log"
			return 1
		fi
		sleep 0.1
	done
}

# engine_stop ends the whole group. One that is stopped (SIGSTOP) is let go on first.
engine_stop() {
	local name=$1 dir=$2 limit=${3:-30} pid
	if ! engine_running "$dir"; then
		rm -f "$dir/pid"
		return 0
	fi
	pid=$(engine_pid "$dir")
	kill -TERM -- "-$pid" 2>/dev/null || true
	kill -CONT -- "-$pid" 2>/dev/null || true
	local end=$((SECONDS + limit))
	while engine_running "$dir"; do
		if [ "$SECONDS" -ge "$end" ]; then
			echo "engines: $name did not end within $limit s, killed" >&2
			kill -KILL -- "-$pid" 2>/dev/null || true
			end=$((SECONDS + 10))
		fi
		sleep 0.05
	done
	rm -f "$dir/pid"
}
